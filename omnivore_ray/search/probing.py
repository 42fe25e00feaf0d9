"""What a search knows about running probes: their pace, their length, and what diverged."""

from __future__ import annotations

import math
from collections.abc import Generator, Iterable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from omnivore_ray.efficiency.fitting import Timing, fit
from omnivore_ray.efficiency.hardware import HardwareModel
from omnivore_ray.search.race import Runner
from omnivore_ray.strategy import Outcome, Request, Strategy

MOST_FAILURES = 3

Probing = Generator[Request, Outcome, None]


class GivesUp(Exception):
    """Ends a search that cannot succeed; its text is the search's failure."""


class Prober:
    """Runs probes, and learns from each what an update costs and what diverges.

    Args:
        rows: The search's table of decisions; its last row belongs to the outcome just sent.
        num_devices: N.
        probe_updates: Updates of a probe, at the slowest strategy of its race.
        hardware: Predicts seconds per update before any is measured, if known.
    """

    def __init__(
        self,
        rows: list[dict[str, Any]],
        num_devices: int,
        probe_updates: int,
        hardware: HardwareModel | None = None,
    ) -> None:
        self.rows, self.num_devices, self.probe_updates = rows, num_devices, probe_updates
        self.hardware = hardware
        self.diverged: list[Strategy] = []
        self.round = 0
        self.seconds = 0.0
        self._failures = 0
        self._measured: dict[int, float] = {}

    def seconds_per_update(self, g: int) -> float:
        """HE(g): measured if it was, else the model's, corrected by what was measured near it."""
        if g in self._measured:
            return self._measured[g]
        assert self.hardware is not None
        known = sorted(self._measured)
        model = dict(zip((*known, g), self.hardware.seconds_per_update((*known, g)), strict=True))
        if not known:
            return float(model[g])
        errors = [math.log(self._measured[k] / model[k]) for k in known]
        error = float(np.interp(math.log(g), np.log(known), errors))
        return float(model[g]) * math.exp(error)

    def predicted(self, g: int) -> float | None:
        """The hardware model's seconds per update; None before there is a model."""
        return None if self.hardware is None else float(self.hardware.seconds_per_update(g))

    def learn_hardware(self) -> None:
        """Fits the hardware model to what was measured so far, unless it was given.

        Raises:
            GivesUp: Nothing was measured.
        """
        if self.hardware is None:
            if not self._measured:
                raise GivesUp("no timing run finished, so nothing is known about the devices")
            self.hardware = _fitted(tuple(sorted(self._measured.items())), self.num_devices)

    def length_s(self, groups: Iterable[int]) -> float:
        """Seconds in which the slowest of these numbers of groups applies a probe's updates."""
        slowest = max(self.seconds_per_update(g) for g in groups)
        return self.probe_updates * slowest

    def run_updates(self, runner: Runner, updates: int, reason: str) -> Probing:
        """One probe of so many updates."""
        yield from self._run(runner, reason, budget_updates=updates)

    def run_to(self, runner: Runner, seconds: float, reason: str) -> Probing:
        """Brings a runner to ``seconds`` since its start, if it is not nearly there.

        The budget has room for one cycle of the group, in which the pipeline fills.
        """
        if runner.out or runner.seconds >= 0.95 * seconds:
            return
        g = runner.strategy.groups
        fill_s = g * self.seconds_per_update(g)
        yield from self._run(runner, reason, budget_s=seconds - runner.seconds + fill_s)

    def _run(self, runner: Runner, reason: str, **budget: Any) -> Probing:
        request = Request(
            kind="probe",
            strategy=runner.strategy,
            round=self.round,
            resume_from=runner.checkpoint,
            reason=reason,
            **budget,
        )
        outcome = yield request
        self.seconds += outcome.seconds
        runner.add(request, outcome, self.rows[-1])
        if outcome.status == "diverged":
            self.diverged.append(runner.strategy)
        self._failures = self._failures + 1 if outcome.status in ("failed", "interrupted") else 0
        if self._failures == MOST_FAILURES:
            raise GivesUp(f"{MOST_FAILURES} probes in a row {outcome.status}: {outcome.reason}")
        pace_s = runner.pace_s
        if outcome.ok and pace_s:
            self._measured[runner.strategy.groups] = pace_s


@lru_cache(maxsize=256)
def _fitted(measured: Sequence[tuple[int, float]], num_devices: int) -> HardwareModel:
    timings = [Timing(g=g, seconds_per_update=seconds) for g, seconds in measured]
    return fit(timings, num_devices=num_devices).model
