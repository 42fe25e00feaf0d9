"""Probes that start from one state and are compared at equal wall time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from omnivore_ray.search.scoring import Score, log_speeds, pace, tail_loss, without_fill
from omnivore_ray.strategy import Outcome, Request, Strategy


@dataclass(kw_only=True)
class Runner:
    """One strategy in a race: its curve since the start, over one request or several.

    Attributes:
        strategy: What it runs.
        checkpoint: The state it has reached; the race's start before its first request.
        curve: (updates, seconds, loss) since the start.
        rows: Its rows in the table of decisions.
        out: Why it is out of the race (diverged, failed), or "".
    """

    strategy: Strategy
    checkpoint: str | None
    curve: list[tuple[int, float, float]] = field(default_factory=list)
    rows: list[dict[str, Any]] = field(default_factory=list)
    out: str = ""

    @property
    def seconds(self) -> float:
        """Seconds since the start, the pipeline's filling left out."""
        return self.curve[-1][1] if self.curve else 0.0

    @property
    def tail(self) -> float:
        """Loss over the last third of its seconds."""
        return tail_loss(self.curve, self.seconds).value

    @property
    def updates(self) -> int:
        """Updates since the start."""
        return self.curve[-1][0] if self.curve else 0

    @property
    def pace_s(self) -> float | None:
        """Measured seconds per update."""
        return pace(self.curve, self.strategy.groups) if self.curve else None

    def add(self, request: Request, outcome: Outcome, row: dict[str, Any]) -> None:
        """Takes in the outcome of one of its requests."""
        self.rows.append(row)
        if not outcome.ok:
            self.out = outcome.status
            return
        updates, seconds = self.updates, self.seconds
        for n, at_s, loss in without_fill(outcome.curve, self.strategy.groups):
            self.curve.append((updates + n, seconds + at_s, loss))
        self.checkpoint = outcome.checkpoint_path


def standings(runners: Sequence[Runner]) -> list[tuple[Runner, Score]]:
    """The runners that are in, best first, with their log speeds relative to the best."""
    fit = [runner for runner in runners if not runner.out and runner.curve]
    if not fit:
        return []
    at_s = min(runner.seconds for runner in fit)
    for runner in fit:
        score = tail_loss(runner.curve, at_s)
        for row in runner.rows[-1:]:
            row.update(score=score.value, score_error=score.error)
    speeds = log_speeds([runner.curve for runner in fit], at_s)
    return sorted(zip(fit, speeds, strict=True), key=lambda pair: -pair[1].value)
