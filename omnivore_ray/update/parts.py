"""What goes into a session: its rules, what devices push, and the validation under way."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch

from omnivore_ray.update.parameters import Snapshot
from omnivore_ray.update.run_state import RunState
from omnivore_ray.update.stopping import Stopping


@dataclass(frozen=True, kw_only=True, slots=True)
class Part:
    """What a device pushes for one lease.

    Attributes:
        block: Gradients and buffers, see `Contribution.block`; None for an evaluation.
        present: See `Contribution.present`.
        loss: Mean loss over the rows of the lease.
        metrics: Means over the rows of the lease (evaluation).
        finite: Whether every gradient entry is.
        compute_s: Seconds the device computed.
    """

    block: torch.Tensor | None = None
    present: bytes = b""
    loss: float = math.nan
    metrics: Mapping[str, float] = field(default_factory=dict)
    finite: bool = True
    compute_s: float = 0.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Rules:
    """What stays the same over all requests of a run.

    Attributes:
        batch_samples: Batch number to its number of rows.
        validation_samples: Rows of the validation data; 0 for none.
        evaluate_every_s: Seconds between validations.
        stopping: The rules this request ends by.
    """

    batch_samples: Callable[[int], int]
    validation_samples: int
    evaluate_every_s: float
    stopping: Stopping


@dataclass(frozen=True, kw_only=True, slots=True)
class Validation:
    """A validation under way, with the state it judges.

    Attributes:
        begun_s: Run clock when it was handed out.
        snapshot: Parameters, buffers and velocity of the validated version.
        state: Where the run stood then.
    """

    begun_s: float
    snapshot: Snapshot
    state: RunState
