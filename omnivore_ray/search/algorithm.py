"""Our search: a lean cold start, then rounds that keep what they gain.

Cold start: a few short timing runs predict the seconds per update of every g; then learning rate,
momentum and groups race in turn, each race from where the last one's winner stopped. Rounds: the
incumbent races a few neighbours, one coordinate a round, and a long stretch follows.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Sequence
from dataclasses import replace
from typing import Any

from omnivore_ray.search.grids import group_ladder, safe, with_momentum
from omnivore_ray.search.published import PublishedAlgorithm
from omnivore_ray.search.race import Runner, standings
from omnivore_ray.search.scoring import peak
from omnivore_ray.search.scripted import Script, ScriptedAlgorithm
from omnivore_ray.strategy import Outcome, Request, Strategy

LEARNING_RATES = (1.0, 0.3, 0.1, 0.03, 0.01, 0.003, 0.001, 0.0003, 0.0001)
MOMENTA = (0.0, 0.3, 0.6)
ENOUGH = 2.5
CLEAR = 2.0
MOMENTUM_STEP = 0.3
GAIN_FALLS = 0.65
GROWTH = 0.3

Steps = Generator[Request, Outcome, Any]


class OmnivoreAlgorithm(ScriptedAlgorithm):
    """ours"""

    def __init__(
        self,
        num_devices: int,
        learning_rates: Sequence[float] = LEARNING_RATES,
        momenta: Sequence[float] = MOMENTA,
        probe_updates: int = 80,
        train_s: float | None = None,
        rounds: int | None = None,
        probe_share: float = 0.1,
        points_to_evaluate: Sequence[Strategy] | None = None,
        mode: str = "min",
        hardware: Any = None,
        seed: int = 0,
    ) -> None:
        super().__init__()
        self._num_devices = num_devices
        self._learning_rates = tuple(sorted(learning_rates, reverse=True))
        self._momenta = tuple(sorted(momenta))
        self._probe_updates = probe_updates
        self._train_s = train_s
        self._rounds = rounds
        self._probe_share = probe_share
        self._ladder = group_ladder(num_devices)
        self._forget()

    def _forget(self) -> None:
        """Sets what the script has learned to nothing."""
        self._pace: dict[int, float] = {}
        self._diverged: list[Strategy] = []
        self._round = 0
        self._updates = 0
        self._seconds = 0.0
        self._checkpoint: str | None = None
        self._discarded_s = 0.0
        self._steady_s = 0.0

    def _settings(self) -> dict[str, Any]:
        return {
            "num_devices": self._num_devices,
            "learning_rates": list(self._learning_rates),
            "momenta": list(self._momenta),
            "probe_updates": self._probe_updates,
            "train_s": self._train_s,
            "rounds": self._rounds,
            "probe_share": self._probe_share,
        }

    published = PublishedAlgorithm

    # -- phases

    def _plan(self) -> Script:
        self._forget()
        yield from self._time()
        yield from self._race_learning_rate()
        if self.best is None:
            self.failure = "all diverged"
            return
        yield from self._race_momentum(MOMENTUM_STEP)
        yield from self._climb_groups()
        yield from self._race_momentum(MOMENTUM_STEP)
        self._discarded_s = self._steady_s = 0.0
        while True:
            yield from self._train()
            if self._round == self._rounds:
                return
            self._round += 1
            what = (self._climb_groups, self._race_rate, self._race_momentum_fine)[
                self._round % 3 - 1
            ]
            yield from what()

    def _time(self) -> Script:
        ladder = self._ladder
        for g in dict.fromkeys((ladder[-1], ladder[len(ladder) // 2], 1)):
            runner = Runner(
                strategy=Strategy(groups=g, learning_rate=self._learning_rates[-1]), checkpoint=None
            )
            yield from self._probe(runner, updates=max(6, 3 * g), reason="timing")

    def _predict(self, g: int) -> float:
        known = sorted(self._pace)
        import numpy as np

        return float(
            math.exp(
                np.interp(
                    math.log(g),
                    [math.log(k) for k in known],
                    [math.log(self._pace[k]) for k in known],
                )
            )
        )

    def _race_learning_rate(self) -> Script:
        paces = {g: self._predict(g) for g in self._ladder}
        g = min(g for g in self._ladder if paces[g] <= ENOUGH * min(paces.values()))
        momentum = 0.3
        runners: list[Runner] = []
        for rate in self._learning_rates:
            strategy = Strategy(groups=g, learning_rate=rate, momentum=momentum)
            if not safe(strategy, self._diverged):
                continue
            runner = Runner(strategy=strategy, checkpoint=None)
            runners.append(runner)
            yield from self._probe(runner, updates=self._probe_updates, reason="rate race")
            order = standings(runners)
            if (
                len(order) >= 2
                and order[-1][0] is runner
                and order[-1][1].value + CLEAR * order[-1][1].error < 0
            ):
                break
        order = standings(runners)
        if not order:
            return
        winner = order[0][0]
        points = sorted((math.log(r.strategy.learning_rate), s.value) for r, s in order)
        rate = math.exp(peak([x for x, _ in points], [y for _, y in points]))
        self._crown(runners, winner, replace(winner.strategy, learning_rate=rate))

    def _race_momentum(self, step: float) -> Script:
        assert self.best is not None
        centre = self.best
        seconds = self._race_s([centre.groups])
        start = self._checkpoint
        runners = [Runner(strategy=centre, checkpoint=start)]
        yield from self._probe(runners[0], seconds=seconds, reason="incumbent")
        for mu in (
            centre.momentum - step,
            min(centre.momentum + step, 0.5 * (1 + centre.momentum)),
        ):
            runners.append(Runner(strategy=with_momentum(centre, mu), checkpoint=start))
            yield from self._probe(runners[-1], seconds=seconds, reason="momentum race")
        while True:
            order = standings(runners)
            if not order:
                return
            points = sorted((r.strategy.momentum, s.value) for r, s in order)
            best = order[0][0].strategy.momentum
            if best == points[0][0] and best > -0.6 and best < centre.momentum:
                new = best - step
            elif best == points[-1][0] and best < 0.9 and best > centre.momentum:
                new = min(best + step, 0.5 * (1 + best))
            else:
                break
            runner = Runner(strategy=with_momentum(centre, new), checkpoint=start)
            if not safe(runner.strategy, self._diverged):
                break
            runners.append(runner)
            yield from self._probe(runner, seconds=seconds, reason="momentum beyond")
            if runner.out:
                break
        mu = peak([x for x, _ in points], [y for _, y in points])
        self._crown(runners, order[0][0], with_momentum(centre, mu))

    def _race_momentum_fine(self) -> Script:
        yield from self._race_momentum(0.15)

    def _race_rate(self) -> Script:
        assert self.best is not None
        centre = self.best
        seconds = self._race_s([centre.groups])
        start = self._checkpoint
        runners = [Runner(strategy=centre, checkpoint=start)]
        yield from self._probe(runners[0], seconds=seconds, reason="incumbent")
        for factor in (0.5, 2):
            strategy = replace(centre, learning_rate=centre.learning_rate * factor)
            if safe(strategy, self._diverged):
                runners.append(Runner(strategy=strategy, checkpoint=start))
                yield from self._probe(runners[-1], seconds=seconds, reason="rate race")
        order = standings(runners)
        if not order:
            return
        points = sorted((math.log(r.strategy.learning_rate), s.value) for r, s in order)
        rate = math.exp(peak([x for x, _ in points], [y for _, y in points]))
        self._crown(runners, order[0][0], replace(centre, learning_rate=rate))

    def _climb_groups(self) -> Script:
        assert self.best is not None
        for direction in (1, -1):
            moved = False
            while True:
                i = self._ladder.index(self.best.groups) + direction
                if not 0 <= i < len(self._ladder):
                    break
                g = self._ladder[i]
                if direction == 1 and self._predict(g) > 0.9 * self._predict(self.best.groups):
                    break
                scale = (g / self.best.groups) ** -GAIN_FALLS
                rate = self.best.learning_rate * scale
                challenger = Strategy(groups=g, learning_rate=rate, momentum=self.best.momentum)
                if not safe(challenger, self._diverged):
                    break
                seconds = self._race_s([g, self.best.groups])
                start = self._checkpoint
                runners = [Runner(strategy=s, checkpoint=start) for s in (self.best, challenger)]
                for runner in runners:
                    yield from self._probe(runner, seconds=seconds, reason="groups race")
                order = standings(runners)
                if not order:
                    return
                self._crown(runners, order[0][0], order[0][0].strategy)
                if order[0][0].strategy.groups != g:
                    break
                moved = True
            if moved:
                break

    def _train(self) -> Script:
        assert self.best is not None
        share = self._probe_share
        owed = self._discarded_s / share - self._steady_s
        seconds = max(owed, 2 * self._race_s([self.best.groups]))
        outcome = yield Request(
            kind="train",
            strategy=self.best,
            round=self._round,
            budget_s=seconds,
            resume_from=self._checkpoint,
            reason="stretch",
        )
        self._steady_s += outcome.seconds
        if outcome.ok:
            self._checkpoint = outcome.checkpoint_path
            self._updates += outcome.updates
            self._seconds += outcome.seconds

    # -- helpers

    def _race_s(self, groups: Sequence[int]) -> float:
        slowest = max(self._predict(g) for g in groups)
        return max(self._probe_updates * slowest, GROWTH * self._seconds)

    def _probe(
        self,
        runner: Runner,
        reason: str,
        updates: int | None = None,
        seconds: float | None = None,
    ) -> Script:
        g = runner.strategy.groups
        if seconds is not None and self._pace:
            seconds += g * self._predict(g)
        request = Request(
            kind="probe",
            strategy=runner.strategy,
            round=self._round,
            budget_updates=updates,
            budget_s=seconds,
            resume_from=runner.checkpoint,
            reason=reason,
        )
        outcome = yield request
        self._discarded_s += outcome.seconds
        self._steady_s += outcome.seconds
        runner.add(request, outcome, self._rows[-1])
        if runner.out:
            self._diverged.append(runner.strategy)
        elif runner.pace_s:
            self._pace[g] = runner.pace_s

    def _crown(self, runners: Sequence[Runner], winner: Runner, strategy: Strategy) -> None:
        self.best = strategy
        self._checkpoint = winner.checkpoint
        self._updates += winner.updates
        self._seconds += winner.seconds
        self._discarded_s -= winner.seconds
        for runner in runners:
            verdict = runner.out or ("won" if runner is winner else "lost")
            runner.rows[-1]["verdict"] = verdict
