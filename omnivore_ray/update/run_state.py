"""RunState: where a run stands, apart from its tensors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from omnivore_ray.update.stopping import SmoothedLoss


@dataclass(slots=True, kw_only=True)
class RunState:
    """Where a run stands, apart from its tensors: what ``state.json`` holds.

    Attributes:
        version: Updates applied to the parameters.
        samples: Samples those updates used.
        next_batch: First batch number never opened.
        owed: Batches opened but not applied.
        smoothed: Smoothed training loss.
        metrics: Last validation metrics.
        evaluated_s: Run clock at the end of the last validation, or None.
        evaluation_took_s: How long that validation took.
    """

    version: int = 0
    samples: int = 0
    next_batch: int = 0
    owed: tuple[int, ...] = ()
    smoothed: SmoothedLoss = field(default_factory=SmoothedLoss)
    metrics: dict[str, float] = field(default_factory=dict)
    evaluated_s: float | None = None
    evaluation_took_s: float = 0.0

    def copy(self) -> RunState:
        """An independent copy."""
        return replace(self, smoothed=replace(self.smoothed), metrics=dict(self.metrics))

    def to_json(self) -> dict[str, Any]:
        """A JSON object."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> RunState:
        """The inverse of `to_json`.

        Raises:
            ValueError: A field is not of its type.
            TypeError: A field is missing or unknown.
        """
        state = cls(**data)
        state.smoothed = SmoothedLoss(**data["smoothed"])
        state.owed = tuple(data["owed"])
        smoothed = state.smoothed
        counts = (state.version, state.samples, state.next_batch, smoothed.count, *state.owed)
        numbers = [
            smoothed.total,
            smoothed.weight,
            state.evaluation_took_s,
            *state.metrics.values(),
        ]
        numbers += [x for x in (smoothed.reference, state.evaluated_s) if x is not None]
        if not all(type(count) is int and count >= 0 for count in counts):
            raise ValueError(f"a count is not a whole number of at least 0: {data}")
        if not all(type(number) in (int, float) for number in numbers):
            raise ValueError(f"a value is not a number: {data}")
        return state
