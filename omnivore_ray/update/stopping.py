"""When a request ends: its budget, the run's target and time limit, divergence. Pure decisions."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from omnivore_ray.strategy import Request, Status
from omnivore_ray.workload import Target

#: The smoothed loss is a bias-corrected exponential mean over about this many updates.
SMOOTHING_UPDATES = 20
#: Updates before the smoothed loss is trusted with a decision.
TRUSTED_UPDATES = 10
#: The loss explodes when, smoothed, it passes this many times that of the run's first updates.
EXPLOSION_FACTOR = 10.0


@dataclass(frozen=True, slots=True)
class Ending:
    """Why a request ends."""

    status: Status
    reason: str


@dataclass(slots=True, kw_only=True)
class SmoothedLoss:
    """Exponential mean of the training loss, and the first trusted value as reference.

    Attributes:
        total: Weighted sum of the losses.
        weight: Sum of the weights; ``total / weight`` is the smoothed loss.
        count: Updates seen.
        reference: Smoothed loss after the run's first `TRUSTED_UPDATES`, or None.
    """

    total: float = 0.0
    weight: float = 0.0
    count: int = 0
    reference: float | None = None

    def add(self, loss: float) -> None:
        """Takes in the loss of one update."""
        keep = 1.0 - 1.0 / SMOOTHING_UPDATES
        self.total = keep * self.total + loss
        self.weight = keep * self.weight + 1.0
        self.count += 1
        if self.reference is None and self.count >= TRUSTED_UPDATES:
            self.reference = self.value

    @property
    def value(self) -> float:
        """The smoothed loss; nan before the first update."""
        return self.total / self.weight if self.weight else math.nan

    @property
    def exploded(self) -> bool:
        """Whether it is far above where the run began (losses below 0 never explode)."""
        if self.reference is None or self.reference <= 0:
            return False
        return self.value > EXPLOSION_FACTOR * self.reference


@dataclass(frozen=True, kw_only=True, slots=True)
class Stopping:
    """The rules one request ends by.

    Attributes:
        request: Its budgets are counted from its own start.
        target: The run's target, or None.
        time_limit_s: The run's end on the run's clock, or None.
    """

    request: Request
    target: Target | None = None
    time_limit_s: float | None = None

    def after_update(
        self, *, loss: float, smoothed: SmoothedLoss, updates: int, samples: int, seconds: float
    ) -> Ending | None:
        """Judges an applied update; ``updates``, ``samples``, ``seconds`` are the run's."""
        if smoothed.exploded:
            return Ending(
                "diverged",
                f"{self.request.strategy}: the loss rose to {smoothed.value:.3g}, over "
                f"{EXPLOSION_FACTOR:g} times its first {smoothed.reference:.3g}, "
                f"at update {updates}",
            )
        values = {"updates": float(updates), "samples": float(samples), "seconds": seconds}
        if smoothed.count >= TRUSTED_UPDATES:
            values["loss"] = smoothed.value
        return self.judge(values)

    def not_finite(self, what: str, updates: int) -> Ending:
        """The loss or a gradient of the update after ``updates`` was nan or infinite."""
        return Ending(
            "diverged", f"{self.request.strategy}: {what} not finite at update {updates + 1}"
        )

    def judge(self, values: Mapping[str, float]) -> Ending | None:
        """The target's verdict on the given metrics."""
        target = self.target
        if target is not None and target.metric in values:
            value = values[target.metric]
            if target.reached(value):
                return Ending("target_reached", f"{target} reached: {value:.4g}")
        return None

    def at_time(self, *, seconds: float, used_s: float) -> Ending | None:
        """Judges the clock: run seconds, and seconds this request has used."""
        if self.time_limit_s is not None and seconds >= self.time_limit_s:
            return Ending("out_of_time", f"time limit of {self.time_limit_s:g} s")
        budget_s = self.request.budget_s
        if budget_s is not None and used_s >= budget_s:
            return Ending("completed", f"budget of {budget_s:g} s")
        return None
