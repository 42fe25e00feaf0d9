"""The rounds: long stretches of training, and a race before each next one."""

from __future__ import annotations

import math
from dataclasses import replace

from omnivore_ray.search.probing import Prober, Probing
from omnivore_ray.search.race import Runner
from omnivore_ray.search.scoring import exponent, tail_loss
from omnivore_ray.strategy import Request, Strategy

SPACING = 0.7
FALL = 2.0
CLEAR = 1.0
KEEPS = math.exp(1 - 1 / FALL) / FALL
MOST_FAILURES = 3
PROBE_N = 100


class Rounds:
    """Trains, and re-optimises from time to time."""

    def __init__(
        self,
        prober: Prober,
        best: Strategy,
        leader: Runner,
        *,
        probe_share: float,
        train_s: float | None,
        rounds: int | None,
    ) -> None:
        self.best = best
        self.failure: str | None = None
        self._prober = prober
        self._checkpoint = leader.checkpoint
        self._path_s = leader.seconds
        self._share, self._train_s, self._rounds = probe_share, train_s, rounds
        self._steady_s = self._probe_s = 0.0

    def run(self) -> Probing:
        failures = 0
        prober = self._prober
        while True:
            seconds = PROBE_N / prober.probe_updates * prober.length_s([self.best.groups])
            cost = 2 * seconds
            owed = (self._probe_s + cost) / self._share - self._steady_s
            stretch = self._train_s or max(owed, SPACING * self._path_s)
            before_s = self._path_s
            outcome = yield Request(
                kind="train",
                strategy=self.best,
                round=prober.round,
                budget_s=stretch,
                resume_from=self._checkpoint,
                reason="long stretch",
            )
            self._steady_s += outcome.seconds
            if not outcome.ok:
                failures += 1
                if failures == MOST_FAILURES:
                    self.failure = f"training {outcome.status}: {outcome.reason}"
                    return
                if outcome.status == "diverged":
                    prober.diverged.append(self.best)
                    self.best = replace(self.best, learning_rate=self.best.learning_rate / 2)
                continue
            failures = 0
            self._checkpoint = outcome.checkpoint_path
            self._path_s += outcome.seconds
            if prober.round == self._rounds:
                return
            prober.round += 1
            expo = exponent(outcome.curve, before_s)
            # race
            low = replace(self.best, learning_rate=self.best.learning_rate / FALL)
            inc, challenger = (
                Runner(strategy=s, checkpoint=self._checkpoint) for s in (self.best, low)
            )
            t = prober.seconds
            yield from prober.run_to(inc, seconds, "incumbent")
            yield from prober.run_to(challenger, seconds, "lower learning rate")
            self._probe_s += prober.seconds - t
            self._steady_s += prober.seconds - t
            if inc.out or challenger.out:
                continue
            at = min(inc.seconds, challenger.seconds)
            a, b = tail_loss(inc.curve, at), tail_loss(challenger.curve, at)
            rho = 1 + SPACING
            penalty = (rho / (1 + (rho - 1) * KEEPS)) ** expo - 1
            gain = (a.value - b.value) / a.value
            err = math.hypot(a.error, b.error) / a.value
            winner = challenger if gain > penalty + CLEAR * err else inc
            self.best, self._checkpoint = winner.strategy, winner.checkpoint
            self._path_s += winner.seconds
