"""The rounds: long stretches of training, and a race of the incumbent before each next one.

Each race starts from the snapshot the last stretch left. The incumbent runs in it, a lower learning
rate challenges it, and in every second race one other neighbour by turns: more groups, a higher
learning rate, less momentum, more momentum, fewer groups. All probes of all rounds together stay
within a share of the time since the cold start: a stretch is long enough to have earned the race
that follows it.

Notation:
    u          learning rate over the one the cold start found best, at that g and momentum
    s          speed relative to the incumbent's that a challenger is expected to have: near the
               best learning rate speed goes as u e^(1-u)
    T          seconds trained so far on the path that is kept; the horizon is 2 T
    p          loss ~ T^-p over the last stretch
    penalty    (2 / (1 + s))^p - 1: what the difference in speed will have cost at the horizon,
               relative to the loss; negative for a faster challenger

A lower learning rate shows at once what it gains (less noise in the parameters) and only later what
it costs (slower progress), so a race at equal wall time alone would always choose it. A challenger
takes over if its gain in the race exceeds its penalty by two standard errors.
"""

from __future__ import annotations

import math
from collections.abc import Generator
from dataclasses import dataclass

from omnivore_ray.search.grids import group_ladder, groups_step, momentum_step, rate_step, safe
from omnivore_ray.search.probing import GivesUp, Prober, Probing
from omnivore_ray.search.race import Runner, relative_gain
from omnivore_ray.search.scoring import Score, exponent
from omnivore_ray.strategy import Outcome, Request, Strategy

#: A stretch is at least this share of the time trained before it.
SPACING = 0.5
#: A probe is at least this share of the time trained before it, and this many times the least one.
PROBE_SHARE_OF_PATH = 0.05
PROBE_LENGTHS = 1.25
RATE_STEP = math.log(2)
MOMENTUM_STEP = 0.15
OTHER_EVERY = 2
CLEAR = 2.0
MUST_FALL_TO = 0.95
MOST_FAILURES = 3


@dataclass(frozen=True, kw_only=True, slots=True)
class Challenger:
    """What runs against the incumbent: a strategy, its u over the incumbent's, and a name."""

    strategy: Strategy
    rate_factor: float = 1.0
    name: str


class Rounds:
    """Trains, and re-optimises from time to time.

    Args:
        prober: Runs the probes.
        best: The strategy to begin with.
        tune_momentum: Whether momentum may change.
        checkpoint: The state to begin from; None for the initial parameters.
        path_s: Seconds trained up to that state.
        probe_share: Probes' seconds over all seconds since the cold start, at most.
        train_s: Seconds of each stretch; None lets it grow with the time trained and the probes.
        rounds: How many; None goes on until the run ends.

    Attributes:
        best: The incumbent.
    """

    def __init__(
        self,
        prober: Prober,
        best: Strategy,
        *,
        checkpoint: str | None,
        path_s: float,
        tune_momentum: bool,
        probe_share: float,
        train_s: float | None,
        rounds: int | None,
    ) -> None:
        self.best = best
        self._prober = prober
        self._checkpoint = checkpoint
        self._path_s = path_s
        self._u = 1.0
        self._tune_momentum = tune_momentum
        self._share, self._train_s, self._rounds = probe_share, train_s, rounds
        self._steady_s = self._probe_s = 0.0
        self._failures = 0

    def run(self) -> Probing:
        """The script; see `scripted`.

        Raises:
            GivesUp: Training failed or diverged three times in a row.
        """
        prober = self._prober
        while True:
            self._keep_safe()
            challengers = self._challengers(prober.round)
            probe_s = self._probe_seconds(challengers)
            stretch_s = self._train_s or self._stretch_seconds(self._cost(challengers, probe_s))
            falls_as = yield from self._train(stretch_s)
            if falls_as is None:
                continue
            if prober.round == self._rounds:
                return
            prober.round += 1
            prober.diverged.clear()
            before_s = prober.seconds
            yield from self._race(challengers, probe_s, falls_as)
            self._probe_s += prober.seconds - before_s
            self._steady_s += prober.seconds - before_s

    def _probe_seconds(self, challengers: list[Challenger]) -> float:
        groups = [self.best.groups, *(each.strategy.groups for each in challengers)]
        least_s = PROBE_LENGTHS * self._prober.length_s(groups)
        return max(least_s, PROBE_SHARE_OF_PATH * self._path_s)

    def _cost(self, challengers: list[Challenger], probe_s: float) -> float:
        """Seconds of a race, with the filling of each pipeline."""
        groups = [self.best.groups, *(each.strategy.groups for each in challengers)]
        return sum(probe_s + g * self._prober.seconds_per_update(g) for g in groups)

    def _stretch_seconds(self, race_s: float) -> float:
        """Long enough that the race after it stays within the share."""
        earned_s = (self._probe_s + race_s) / self._share - self._steady_s - race_s
        return max(earned_s, SPACING * self._path_s, race_s)

    def _train(self, seconds: float) -> Generator[Request, Outcome, float | None]:
        """One stretch; returns the exponent of its loss, or None when it came to nothing."""
        before_s = self._path_s
        outcome = yield Request(
            kind="train",
            strategy=self.best,
            round=self._prober.round,
            budget_s=seconds,
            resume_from=self._checkpoint,
            reason="the strategy chosen, until the next race is earned",
        )
        self._steady_s += outcome.seconds
        if not outcome.ok:
            self._retreat(outcome.status, outcome.reason)
            return None
        self._failures = 0
        self._checkpoint = outcome.checkpoint_path
        self._path_s += outcome.seconds
        return exponent(outcome.curve, before_s)

    def _retreat(self, status: str, reason: str) -> None:
        """After the incumbent came to nothing, in a stretch or a race."""
        self._failures += 1
        if self._failures == MOST_FAILURES:
            raise GivesUp(f"training with {self.best} {status}, {MOST_FAILURES} times: {reason}")
        if status == "diverged":
            self._prober.diverged.append(self.best)

    def _keep_safe(self) -> None:
        """Lowers the incumbent's learning rate until nothing that diverged is milder."""
        while not safe(self.best, self._prober.diverged):
            self.best = rate_step(self.best, -RATE_STEP / 2)
            self._u *= math.exp(-RATE_STEP / 2)

    def _race(self, challengers: list[Challenger], seconds: float, falls_as: float) -> Probing:
        incumbent = Runner(strategy=self.best, checkpoint=self._checkpoint)
        yield from self._prober.run_to(incumbent, seconds, "incumbent")
        if incumbent.out:
            self._retreat(incumbent.out, "in a race it had run in before")
            return
        winner, factor, most = incumbent, 1.0, 0.0
        for challenger in challengers:
            if not safe(challenger.strategy, self._prober.diverged):
                continue
            runner = Runner(strategy=challenger.strategy, checkpoint=self._checkpoint)
            yield from self._prober.run_to(runner, seconds, challenger.name)
            if runner.out:
                continue
            gain = relative_gain(runner, incumbent)
            penalty = self._penalty(challenger.rate_factor, falls_as)
            lead = gain.value - penalty - CLEAR * gain.error
            runner.judge("lost", _words(gain, penalty))
            if lead > most:
                winner, factor, most = runner, challenger.rate_factor, lead
        winner.judge("won" if winner is not incumbent else "kept", "")
        if winner is not incumbent:
            incumbent.judge("lost", "")
        self.best, self._checkpoint = winner.strategy, winner.checkpoint
        self._path_s += winner.seconds
        self._u *= factor

    def _penalty(self, rate_factor: float, falls_as: float) -> float:
        speed = rate_factor * math.exp(self._u * (1 - rate_factor))
        return float((2 / (1 + speed)) ** falls_as) - 1

    def _challengers(self, turn: int) -> list[Challenger]:
        """A lower learning rate, and every second time another neighbour; only safe ones."""
        best, ladder = self.best, group_ladder(self._prober.num_devices)
        i = ladder.index(best.groups)
        pace_s = self._prober.seconds_per_update
        lower = Challenger(
            strategy=rate_step(best, -RATE_STEP), rate_factor=0.5, name="lower learning rate"
        )
        higher = Challenger(
            strategy=rate_step(best, RATE_STEP), rate_factor=2.0, name="higher learning rate"
        )
        others = [higher]
        if i + 1 < len(ladder) and pace_s(ladder[i + 1]) < MUST_FALL_TO * pace_s(best.groups):
            more = groups_step(best, ladder[i + 1], self._tune_momentum)
            others.insert(0, Challenger(strategy=more, name="more groups"))
        for offset, name in ((-MOMENTUM_STEP, "less momentum"), (MOMENTUM_STEP, "more momentum")):
            moved = momentum_step(best, offset)
            if moved is not None and self._tune_momentum:
                others.append(Challenger(strategy=moved, name=name))
        if i > 0:
            fewer = groups_step(best, ladder[i - 1], self._tune_momentum)
            others.append(Challenger(strategy=fewer, name="fewer groups"))
        other = others[turn // OTHER_EVERY % len(others)]
        chosen = (lower,) if turn % OTHER_EVERY else (lower, other)
        return [each for each in chosen if safe(each.strategy, self._prober.diverged)]


def _words(gain: Score, penalty: float) -> str:
    return (
        f"loss {gain.value:+.1%} +- {gain.error:.1%} better than the incumbent's; "
        f"its speed is expected to cost {penalty:+.1%} by the next race"
    )
