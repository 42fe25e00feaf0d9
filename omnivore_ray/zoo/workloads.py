"""Workloads of the paper's networks: model, data, loss, accuracy and a batch size that suits."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from omnivore_ray.data.arrays import ArraySource
from omnivore_ray.data.datasets import Split, as_split, load
from omnivore_ray.data.shakespeare import shakespeare_symbols
from omnivore_ray.workload import Workload
from omnivore_ray.zoo.caffenet import CaffeNet
from omnivore_ray.zoo.char_lstm import CharLSTM, next_character_loss
from omnivore_ray.zoo.cifar_quick import CifarQuick
from omnivore_ray.zoo.lenet import LeNet


def accuracy(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Share of targets whose logit is the largest.

    Args:
        outputs: Logits, n x ... x classes.
        targets: Class numbers, n x ....
    """
    return (outputs.argmax(-1) == targets).float().mean()


def lenet(
    data: Any = "digits", *, classes: int = 10, batch_size: int = 64, **options: Any
) -> Workload:
    """LeNet on square images: "digits", "fashion-mnist", "random" (1 x 28 x 28), or your own.

    The digits are standardized, and weight decay is 0.002: so that the plain loop of learning
    rate 0.05 and momentum 0.9 settles above 97 % on their 360 validation images.

    Args:
        data: Name of a data set, or a `Split` or source of tuple batches (images, labels), images
            n x channels x size x size.
        classes: Number of classes.
        batch_size: Samples per update.
        **options: Options of the named data set, e.g. ``folder=``.

    Raises:
        ValueError: The data set is unknown or not there, or its inputs are no square images.
    """
    if isinstance(data, str) and data == "digits":
        options = {"standardize": True, **options}
    split = _split(data, options)
    channels, image_size = _image_shape(split)
    return Workload(
        model=partial(LeNet, image_size=image_size, channels=channels, classes=classes),
        data=split,
        loss=F.cross_entropy,
        metrics={"accuracy": accuracy},
        optimizer={"weight_decay": 0.002},
        batch_size=batch_size,
        name="lenet",
    )


def cifar_quick(
    data: Any = "random", *, classes: int = 10, batch_size: int = 100, **options: Any
) -> Workload:
    """CIFAR-quick on images of 3 x 32 x 32: "random", for timing, or your own.

    Args and Raises: As `lenet`. Weight decay is 0.004, as published.
    """
    if isinstance(data, str) and data == "random":
        options = {"shape": (3, 32, 32), "classes": classes, **options}
    split = _split(data, options)
    _check_shape(split, (3, 32), "cifar_quick")
    return Workload(
        model=partial(CifarQuick, classes=classes),
        data=split,
        loss=F.cross_entropy,
        metrics={"accuracy": accuracy},
        optimizer={"weight_decay": 0.004},
        batch_size=batch_size,
        name="cifar_quick",
    )


def caffenet(
    data: Any = "random", *, classes: int = 1000, batch_size: int = 256, **options: Any
) -> Workload:
    """CaffeNet on images of 3 x 227 x 227: "random", for timing, or your own.

    Args and Raises: As `lenet`. Weight decay is 0.0005, as published.
    """
    if isinstance(data, str) and data == "random":
        options = {"shape": (3, 227, 227), "classes": classes, "samples": 256, **options}
    split = _split(data, options)
    _check_shape(split, (3, 227), "caffenet")
    return Workload(
        model=partial(CaffeNet, classes=classes),
        data=split,
        loss=F.cross_entropy,
        metrics={"accuracy": accuracy},
        optimizer={"weight_decay": 0.0005},
        batch_size=batch_size,
        name="caffenet",
    )


def char_lstm(
    data: str = "shakespeare", *, length: int = 64, batch_size: int = 64, **options: Any
) -> Workload:
    """A character LSTM on "shakespeare", or on "random" characters of 84 kinds, for timing.

    Args:
        data: Name of the data.
        length: Characters in a sequence.
        batch_size: Sequences per update.
        **options: ``folder=`` of the texts; ``samples=`` and ``seed=`` of the random ones.

    Raises:
        ValueError: Another name, an unknown option, or the texts are not there.
    """
    if data == "shakespeare":
        split = load("shakespeare", length=length, **options)
        symbols = len(shakespeare_symbols(options.get("folder")))
    elif data == "random":
        symbols = 84
        split = _random_characters(symbols, length, **options)
    else:
        raise ValueError(f"char_lstm(data={data!r}): give 'shakespeare' or 'random'")
    return Workload(
        model=partial(CharLSTM, symbols=symbols),
        data=split,
        loss=next_character_loss,
        metrics={"accuracy": accuracy},
        batch_size=batch_size,
        name="char_lstm",
    )


def _split(data: Any, options: dict[str, Any]) -> Split:
    return load(data, **options) if isinstance(data, str) else as_split(data)


def _image_shape(split: Split) -> tuple[int, int]:
    """(channels, size) of square images."""
    batch = split.train.take(np.array([0]))
    images = batch[0] if isinstance(batch, tuple) else None
    if images is None or images.ndim != 4 or images.shape[2] != images.shape[3]:
        found = "dict batches" if images is None else f"shape {tuple(images.shape[1:])}"
        raise ValueError(
            f"data has {found}; give (images, labels) with images of channels x size x size"
        )
    return images.shape[1], images.shape[2]


def _check_shape(split: Split, expected: tuple[int, int], maker: str) -> None:
    if _image_shape(split) != expected:
        raise ValueError(
            f"{maker}: data has images of channels x size {_image_shape(split)}; "
            f"this network takes {expected}"
        )


def _random_characters(symbols: int, length: int, samples: int = 1024, seed: int = 0) -> Split:
    characters = np.random.default_rng(seed).integers(symbols, size=(samples, length + 1))
    return Split(train=ArraySource((characters[:, :-1], characters[:, 1:])))
