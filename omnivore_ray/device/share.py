"""ShareRunner: computes one device's share of a batch, from row numbers to a block of gradients.

Row numbers, seeds and weights come from the lease alone, so what is computed does not depend on
who computes it or when: a lease that is given again gives the same result.
"""

from __future__ import annotations

import random
import traceback
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch

from omnivore_ray.data.order import Rows
from omnivore_ray.data.sampler import Sampler
from omnivore_ray.data.sources import Source
from omnivore_ray.device.trainer import Step, Trainer
from omnivore_ray.errors import OmnivoreError

_MOST_ROWS_SHOWN = 8


@dataclass(frozen=True, kw_only=True, slots=True)
class Share:
    """What one share of a batch gave.

    Attributes:
        present: One byte a tensor, in the order of the views: 1 where a gradient was written, or
            where the buffer changed.
        loss: Mean loss over the share.
        finite: Whether every gradient entry is.
    """

    present: bytes
    loss: float
    finite: bool


class ShareRunner:
    """Computes shares on one device.

    Args:
        name: The device's name, for errors.
        trainer: The black box.
        train: Training rows.
        validation: Validation rows, or None.
        batch_size: Rows of a batch, and of a piece of a validation.
        seed: The run's seed.
    """

    def __init__(
        self,
        *,
        name: str,
        trainer: Trainer,
        train: Source,
        validation: Source | None,
        batch_size: int,
        seed: int,
    ) -> None:
        self._name, self._trainer, self._seed = name, trainer, seed
        self._train, self._validation = train, validation
        self._batch_size = batch_size
        self._sampler = Sampler(train.order, len(train), batch_size, seed)

    def gradient(
        self,
        *,
        batch: int,
        start: int,
        stop: int,
        weight: float,
        state: Mapping[str, torch.Tensor],
        out: Mapping[str, torch.Tensor],
    ) -> Share:
        """Gradients of rows ``start`` to ``stop`` of a batch.

        Args:
            batch: Batch number.
            start: First row of the batch.
            stop: One past the last.
            weight: Share of the batch; the gradients are multiplied by it.
            state: Parameters and buffers by name.
            out: Where to write gradients and buffers, by the same names.

        Raises:
            OmnivoreError: The user's code failed; its exception is the cause.
        """
        rows = self._sampler.rows(batch, start, stop)
        _seed_everything(self._seed, batch, start)
        try:
            step = self._trainer.gradient(state, self._train.take(rows))
        except Exception as error:
            raise self._failure(error, "rows", rows) from error
        present = _write(step, weight, state, out)
        gradients = [gradient for gradient in step.gradients.values() if gradient is not None]
        return Share(present=present, loss=step.loss, finite=all(map(_finite, gradients)))

    def evaluate(
        self, *, start: int, stop: int, state: Mapping[str, torch.Tensor]
    ) -> dict[str, float]:
        """Metrics of validation rows ``start`` to ``stop``, each a mean over them.

        Raises:
            OmnivoreError: The user's code failed; its exception is the cause.
        """
        assert self._validation is not None
        sums: dict[str, float] = {}
        for low in range(start, stop, self._batch_size):
            rows = np.arange(low, min(low + self._batch_size, stop))
            try:
                means = self._trainer.evaluate(state, self._validation.take(rows))
            except Exception as error:
                raise self._failure(error, "validation rows", rows) from error
            for name, mean in means.items():
                sums[name] = sums.get(name, 0.0) + mean * len(rows)
        return {name: total / (stop - start) for name, total in sums.items()}

    def _failure(self, error: Exception, what: str, rows: Rows) -> OmnivoreError:
        shown = ", ".join(map(str, rows[:_MOST_ROWS_SHOWN].tolist()))
        more = f", ... ({len(rows)} rows)" if len(rows) > _MOST_ROWS_SHOWN else ""
        return OmnivoreError(
            f"the workload failed on {self._name} with {what} {shown}{more}: "
            f"{type(error).__name__}: {error}\n\n{''.join(traceback.format_exception(error))}"
        )


@torch.no_grad()
def _write(
    step: Step,
    weight: float,
    state: Mapping[str, torch.Tensor],
    out: Mapping[str, torch.Tensor],
) -> bytes:
    """Fills ``out``; returns which of its tensors have something to say."""
    present = bytearray(len(out))
    for index, (name, place) in enumerate(out.items()):
        if name in step.buffers:
            place.copy_(step.buffers[name])
            present[index] = not torch.equal(place, state[name])
            continue
        gradient = step.gradients.get(name)
        if gradient is None:
            place.zero_()
            continue
        present[index] = 1
        if weight == 1.0:
            place.copy_(gradient)
        else:
            torch.mul(gradient, weight, out=place)
    return bytes(present)


def _finite(gradient: torch.Tensor) -> bool:
    """One pass and no copy: a nan or infinity anywhere makes the sum one (in a wide dtype)."""
    wide = torch.promote_types(gradient.dtype, torch.float32)
    return bool(torch.isfinite(gradient.sum(dtype=wide)))


def _seed_everything(*parts: int) -> None:
    """Makes dropout and augmentation depend on the rows, not on who computes them."""
    word = int(np.random.SeedSequence(parts).generate_state(1)[0])
    # not torch.manual_seed: without a GPU it queues a call, and a traceback, each time
    torch.default_generator.manual_seed(word)
    if torch.cuda.is_initialized():
        torch.cuda.manual_seed_all(word)
    np.random.seed(word)
    random.seed(word)
