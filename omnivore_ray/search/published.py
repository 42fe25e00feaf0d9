"""The authors' Algorithm 1 as they published it: the baseline (PAPER section 5).

Kept with its known weaknesses: probe progress is thrown away, the learning rate can only fall,
every g is probed, and no noise is estimated. Its crashes (momentum 0 at one group, fewer than ten
losses) are not kept.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from statistics import fmean
from typing import Any

from omnivore_ray.search.grids import group_ladder, published_grid, safe
from omnivore_ray.search.scripted import Script, ScriptedAlgorithm
from omnivore_ray.strategy import Outcome, Request, Strategy

MUST_FALL_TO = 0.9
NEARLY_BEST = 1.01
NEXT_CENTRE = 0.6


class PublishedAlgorithm(ScriptedAlgorithm):
    """Cold start over every g upwards, then rounds of five probes before each long stretch.

    Args:
        num_devices: N; groups are powers of two up to it.
        learning_rates: Grid of the first group setting.
        momenta: Grid of the others; its largest is used at one group.
        cold_probe_s: Seconds of each cold-start probe.
        probe_s: Seconds of each probe of a round.
        train_s: Seconds of each long stretch.
        rounds: Rounds after the cold start; None goes on for ever.
    """

    def __init__(
        self,
        num_devices: int,
        learning_rates: Sequence[float] = (0.1, 0.01, 0.001, 0.0001),
        momenta: Sequence[float] = (0.0, 0.3, 0.6, 0.9),
        cold_probe_s: float = 60.0,
        probe_s: float = 200.0,
        train_s: float = 10_000.0,
        rounds: int | None = None,
    ) -> None:
        super().__init__()
        self._num_devices = num_devices
        self._learning_rates, self._momenta = tuple(learning_rates), tuple(momenta)
        self._cold_probe_s, self._probe_s, self._train_s = cold_probe_s, probe_s, train_s
        self._rounds = rounds

    def _settings(self) -> dict[str, Any]:
        return {
            "num_devices": self._num_devices,
            "learning_rates": list(self._learning_rates),
            "momenta": list(self._momenta),
            "cold_probe_s": self._cold_probe_s,
            "probe_s": self._probe_s,
            "train_s": self._train_s,
            "rounds": self._rounds,
        }

    def _plan(self) -> Script:
        yield from self._cold_start()
        if self.best is None:
            self.failure = self.failure or (
                f"every learning rate of {list(self._learning_rates)} diverged in the cold start; "
                "give smaller learning_rates"
            )
            return
        snapshot: str | None = None
        failures = number = 0
        while True:
            outcome = yield Request(
                kind="train",
                strategy=self.best,
                round=number,
                budget_s=self._train_s,
                resume_from=snapshot,
                reason="long stretch with the strategy chosen",
            )
            failures = 0 if outcome.ok else failures + 1
            if failures == 3:
                self.failure = f"training {outcome.status} three times in a row: {outcome.reason}"
                return
            snapshot = outcome.checkpoint_path if outcome.ok else snapshot
            if number == self._rounds:
                return
            number += 1
            yield from self._reoptimise(number, snapshot)

    def _cold_start(self) -> Script:
        top = max(self._momenta)
        ladder = group_ladder(self._num_devices)
        grid = [
            Strategy(groups=ladder[0], learning_rate=rate, momentum=top)
            for rate in self._learning_rates
        ]
        winners: list[tuple[float, Strategy]] = []
        before_s = None
        for g in ladder:
            if winners:
                last = winners[-1][1]
                grid = published_grid(g, last.learning_rate, last.momentum, self._momenta)
            scored, pace_s = yield from self._search(
                grid, 0, None, self._cold_probe_s, before_s, "cold start"
            )
            if not scored:
                break
            winners.append(min(scored, key=lambda pair: pair[0]))
            self.best = min(winners, key=lambda pair: pair[0])[1]
            if before_s is not None and (pace_s is None or pace_s > MUST_FALL_TO * before_s):
                break
            before_s = pace_s

    def _reoptimise(self, number: int, snapshot: str | None) -> Script:
        """One round of probes from the snapshot; groups are halved while momentum 0 is best."""
        assert self.best is not None
        centre = self.best
        while True:
            grid = published_grid(
                centre.groups, centre.learning_rate, centre.momentum, self._momenta
            )
            scored, _ = yield from self._search(
                grid, number, snapshot, self._probe_s, None, "round"
            )
            if not scored:
                return
            limit = NEARLY_BEST * min(score for score, _ in scored)
            good = [strategy for score, strategy in scored if score <= limit]
            self.best = max(good, key=lambda s: (s.learning_rate, s.momentum))
            if self.best.momentum != 0 or self.best.groups == 1:
                return
            centre = Strategy(
                groups=self.best.groups // 2,
                learning_rate=self.best.learning_rate,
                momentum=NEXT_CENTRE,
            )

    def _search(
        self,
        grid: list[Strategy],
        number: int,
        snapshot: str | None,
        seconds: float,
        must_fall_below_s: float | None,
        phase: str,
    ) -> Generator[Request, Outcome, tuple[list[tuple[float, Strategy]], float | None]]:
        """Probes a grid; returns (score, strategy) of what finished, and seconds per update.

        With ``must_fall_below_s`` the first probe decides whether the others are worth it.
        """
        scored: list[tuple[float, Strategy]] = []
        diverged: list[Strategy] = []
        pace_s = None
        for strategy in grid:
            if not safe(strategy, diverged):
                continue
            outcome = yield Request(
                kind="probe",
                strategy=strategy,
                round=number,
                budget_s=seconds,
                resume_from=snapshot,
                reason=f"{phase}: grid at {strategy.groups} groups",
            )
            if not outcome.ok:
                diverged.append(strategy)
                continue
            scored.append((fmean(loss for _, _, loss in outcome.curve[-10:]), strategy))
            self._rows[-1].update(score=scored[-1][0], verdict="scored")
            if pace_s is None:
                pace_s = outcome.seconds_per_update
                if must_fall_below_s and pace_s and pace_s > MUST_FALL_TO * must_fall_below_s:
                    break
        return scored, pace_s
