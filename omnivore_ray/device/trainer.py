"""The black-box contract: all that the rest of the package knows of a device's inside."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch


@dataclass(frozen=True, kw_only=True, slots=True)
class Step:
    """What a trainer returns for one share of a batch.

    Attributes:
        gradients: By parameter name, each of its parameter's shape and dtype, on the CPU: of the
            *mean* loss over the rows. None, or no entry, for a parameter that got none.
        loss: Mean loss over the rows.
        samples: Number of rows.
        buffers: By name, the buffers after the step; may leave out those that did not change.
    """

    gradients: Mapping[str, torch.Tensor | None]
    loss: float
    samples: int
    buffers: Mapping[str, torch.Tensor] = field(default_factory=dict)


class Trainer(Protocol):
    """One device. The tensors it is given are only lent: it must neither keep nor change them,
    unless it says so, and what it returns is read before the next call."""

    def gradient(self, state: Mapping[str, torch.Tensor], batch: Any) -> Step:
        """Forward and backward.

        Args:
            state: Trainable parameters and buffers by name, on the CPU.
            batch: Rows as the data source gives them: a tuple (inputs..., targets) or a dict.
        """
        ...

    def evaluate(self, state: Mapping[str, torch.Tensor], batch: Any) -> Mapping[str, float]:
        """The workload's metrics, each a mean over the rows, without dropout or updates.

        Args:
            state: As for `gradient`.
            batch: As for `gradient`.
        """
        ...


class SplitTrainer(Trainer, Protocol):
    """A device that can compute the backbone alone, for a head that is computed elsewhere."""

    def forward(self, state: Mapping[str, torch.Tensor], batch: Any) -> tuple[torch.Tensor, ...]:
        """The backbone's activations, detached, on the CPU, each rows x ...; keeps the graph
        for `backward`, until which ``state`` must stay as it is.

        Args:
            state: Trainable parameters and buffers of the backbone by name, and maybe more.
            batch: As for `gradient`.
        """
        ...

    def backward(self, gradients: Sequence[torch.Tensor | None]) -> Step:
        """The backbone's gradients; the step's loss is nan.

        Args:
            gradients: Of the loss, for each activation of the last `forward`; None for none.

        Raises:
            ValueError: There was no `forward` since, or the number of gradients differs.
        """
        ...


def count_samples(batch: Any) -> int:
    """Rows of a batch: the first length found in it."""
    values = batch.values() if isinstance(batch, Mapping) else batch
    return len(next(iter(values)))


def split_batch(batch: Any, target: str) -> tuple[tuple[Any, ...], dict[str, Any], Any]:
    """Positional inputs, named inputs and targets of a batch.

    Args:
        batch: A tuple whose last entry holds the targets, or a dict.
        target: Name of the targets in a dict.

    Raises:
        ValueError: There are no targets in it.
    """
    if isinstance(batch, Mapping):
        if target not in batch:
            raise ValueError(
                f"Workload.target={target!r} is not in the batch, which has "
                f"{', '.join(map(repr, batch))}; name the entry with the targets"
            )
        return (), {name: value for name, value in batch.items() if name != target}, batch[target]
    if not isinstance(batch, (tuple, list)) or len(batch) < 2:
        raise ValueError(
            f"a batch is a {type(batch).__name__}; the data must give (inputs, targets) or a dict"
        )
    return tuple(batch[:-1]), {}, batch[-1]
