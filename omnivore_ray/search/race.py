"""Probes that start from one state and are compared at equal wall time."""

from __future__ import annotations

import math
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
        reason: Why its last request was asked for.
        out: Why it is out of the race (diverged, failed), or "".
    """

    strategy: Strategy
    checkpoint: str | None
    curve: list[tuple[int, float, float]] = field(default_factory=list)
    rows: list[dict[str, Any]] = field(default_factory=list)
    reason: str = ""
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

    def judge(self, verdict: str, words: str) -> None:
        """Writes a verdict, and why, into the row of its last request."""
        self.rows[-1].update(verdict=verdict, reason="; ".join(filter(None, (self.reason, words))))

    def add(self, request: Request, outcome: Outcome, row: dict[str, Any]) -> None:
        """Takes in the outcome of one of its requests."""
        self.rows.append(row)
        self.reason = row["reason"]
        if not outcome.ok:
            self.out = outcome.status
            return
        updates, seconds = self.updates, self.seconds
        for n, at_s, loss in without_fill(outcome.curve, self.strategy.groups):
            self.curve.append((updates + n, seconds + at_s, loss))
        self.checkpoint = outcome.checkpoint_path


def standings(runners: Sequence[Runner]) -> list[tuple[Runner, Score]]:
    """The runners that are in, best first, with their log speeds relative to the best.

    Writes score and verdict into the rows of their last requests.
    """
    fit = [runner for runner in runners if not runner.out and runner.curve]
    if not fit:
        return []
    at_s = min(runner.seconds for runner in fit)
    speeds = log_speeds([runner.curve for runner in fit], at_s)
    order = sorted(zip(fit, speeds, strict=True), key=lambda pair: -pair[1].value)
    for runner, speed in order:
        loss = tail_loss(runner.curve, at_s)
        runner.rows[-1].update(score=loss.value, score_error=loss.error)
        words = f"{math.exp(speed.value):.2f} of the leader's speed after {at_s:.3g} s"
        runner.judge("leads" if runner is order[0][0] else "lost", words)
    return order


def relative_gain(runner: Runner, incumbent: Runner) -> Score:
    """How much lower a runner's loss is at equal wall time, as a share of the incumbent's.

    Writes both scores into the rows of their last requests.
    """
    at_s = min(runner.seconds, incumbent.seconds)
    mine, theirs = (tail_loss(each.curve, at_s) for each in (runner, incumbent))
    for each, score in ((runner, mine), (incumbent, theirs)):
        each.rows[-1].update(score=score.value, score_error=score.error)
    scale = abs(theirs.value) or 1.0
    error = math.hypot(mine.error, theirs.error) / scale
    return Score(value=(theirs.value - mine.value) / scale, error=error)
