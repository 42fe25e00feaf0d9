"""The cold start: from nothing to a strategy and a state worth going on from.

A few short timing runs predict the seconds per update of every g. Then learning rate, momentum and
groups race in turn, at equal wall time, momentum again if the groups have changed much, and the
learning rate once more at the end. All probes of the races begin at the initial parameters, where
strategies differ most, so each is run once and compared with all others; leaders are extended, and
the furthest state is kept.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Sequence

from omnivore_ray.search.grids import (
    alike,
    group_ladder,
    groups_step,
    momentum_step,
    rate_step,
    safe,
)
from omnivore_ray.search.probing import GivesUp, Prober, Probing
from omnivore_ray.search.race import Runner, standings
from omnivore_ray.search.scoring import fall, peak
from omnivore_ray.strategy import Outcome, Request, Strategy

#: Races begin at the fewest groups whose updates cost at most this much more than the cheapest.
ENOUGH = 1.6
#: More groups are not tried unless an update is predicted to cost at most this share.
MUST_FALL_TO = 0.95
#: Standard errors by which a slower learning rate must lose before lower ones are left out.
CLEAR = 2.0
#: Standard errors by which a loss must fall to count as learning, or as perhaps learning.
LEARNS, MAYBE_LEARNS = 3.0, 1.5
#: Learning rates after which a g is given up when none of them seems to learn.
GIVE_UP_AFTER = 4
RATE_STEP = math.log(2)
MOST_STEPS = 5
#: The learning rate taken, over the fastest: speed is flat at its peak, noise is not.
BELOW_PEAK = 0.9
#: A timing run: so many updates of each group, at so small a share of the lowest learning rate.
TIMING_CYCLES, TIMING_UPDATES, TIMING_RATE = 3, 6, 1e-2
#: Momentum races again once the groups have changed by this factor since it did.
FAR = 4
#: Log speed by which a fresh start makes more groups look slower than they will be.
EARLY_PENALTY = 0.1

Move = Callable[[Strategy, float], Strategy | None]
Entry = Generator[Request, Outcome, Runner | None]


class ColdStart:
    """Finds a first strategy.

    Attributes:
        best: The strategy found so far; None while nothing has run without diverging.
        pool: Every runner that is in, all from the initial parameters.
    """

    def __init__(
        self,
        prober: Prober,
        learning_rates: Sequence[float],
        momenta: Sequence[float],
        points: Sequence[Strategy],
    ) -> None:
        self.best: Strategy | None = None
        self.pool: list[Runner] = []
        self._prober = prober
        self._ladder = group_ladder(prober.num_devices)
        self._learning_rates = sorted(learning_rates, reverse=True)
        momenta = sorted(momenta)
        self._momentum = momenta[len(momenta) // 2]
        self._momentum_step = (momenta[-1] - momenta[0]) / max(1, len(momenta) - 1)
        self._points = points

    def run(self) -> Probing:
        """The script; leaves its findings in ``best`` and ``pool``.

        Raises:
            GivesUp: Everything diverged, or probes fail one after the other.
        """
        yield from self._time()
        yield from self._try_points()
        if self.best is None:
            yield from self._find_learning()
        if self.best is None:
            rates = self._learning_rates
            raise GivesUp(
                f"every learning rate from {rates[0]:g} to {rates[-1] / 100:g} diverged; give "
                "smaller learning_rates, or look for what makes the loss not finite"
            )
        yield from self._tune_momentum()
        before = self.best.groups
        yield from self._climb_groups()
        if max(self.best.groups / before, before / self.best.groups) >= FAR:
            yield from self._tune_momentum()
        yield from self._line(rate_step, RATE_STEP, "learning rate")
        self.best = rate_step(self.best, math.log(BELOW_PEAK))

    def furthest(self) -> tuple[str | None, float]:
        """The state with the lowest loss, from which training goes on, and its seconds."""
        if not self.pool:
            return None, 0.0
        leader = min(self.pool, key=lambda runner: runner.tail)
        leader.judge("kept", "the lowest loss: training goes on from this state")
        return leader.checkpoint, leader.seconds

    def _time(self) -> Probing:
        if self._prober.hardware is not None:
            return
        rate = TIMING_RATE * self._learning_rates[-1]
        ladder = self._ladder
        for g in dict.fromkeys((ladder[-1], ladder[len(ladder) // 2], 1)):
            runner = Runner(strategy=Strategy(groups=g, learning_rate=rate), checkpoint=None)
            updates = max(TIMING_UPDATES, TIMING_CYCLES * g)
            yield from self._prober.run_updates(runner, updates, "timing run")
            if runner.out == "diverged":
                raise GivesUp(
                    f"even {runner.strategy} diverged; look for what makes the loss not finite"
                )
        self._prober.learn_hardware()

    def _try_points(self) -> Probing:
        runners = []
        seconds = (
            self._prober.length_s(point.groups for point in self._points) if self._points else 0
        )
        for point in self._points:
            runner = yield from self._enter(point, seconds, "a point that was given")
            if runner is not None:
                runners.append(runner)
        learning = [runner for runner in runners if fall(runner.curve) > LEARNS]
        if learning:
            self.best = standings(learning)[0][0].strategy

    def _find_learning(self) -> Probing:
        """Races learning rates at the first g that is fast enough; at fewer if nothing learns."""
        paces = {g: self._prober.seconds_per_update(g) for g in self._ladder}
        g = min(g for g in self._ladder if paces[g] <= ENOUGH * min(paces.values()))
        while True:
            runners = yield from self._race_rates(g)
            order = standings(runners)
            learns = yield from self._learns(runners)
            if order and (learns or g == 1):
                points = sorted((math.log(r.strategy.learning_rate), s.value) for r, s in order)
                x = peak([x for x, _ in points], [y for _, y in points])
                self.best = Strategy(groups=g, learning_rate=math.exp(x), momentum=self._momentum)
            if learns or g == 1:
                return
            g = self._ladder[max(0, self._ladder.index(g) - 2)]

    def _race_rates(self, g: int) -> Generator[Request, Outcome, list[Runner]]:
        """Downwards, until one is clearly slower than the best, or nothing seems to learn.

        Below the grid only while everything diverges.
        """
        runners: list[Runner] = []
        seconds = self._prober.length_s([g])
        lowest = self._learning_rates[-1]
        for rate in (*self._learning_rates, lowest / 10, lowest / 100):
            if rate < lowest and runners:
                break
            strategy = Strategy(groups=g, learning_rate=rate, momentum=self._momentum)
            runner = yield from self._enter(strategy, seconds, "learning rate")
            if runner is None:
                continue
            runners.append(runner)
            learns = any(fall(each.curve) > LEARNS for each in runners)
            if not learns and g > 1 and len(runners) == GIVE_UP_AFTER:
                break
            last, score = standings(runners)[-1]
            if learns and last is runner and score.value + CLEAR * score.error < 0:
                break
        return runners

    def _learns(self, runners: list[Runner]) -> Generator[Request, Outcome, bool]:
        """Whether any loss clearly falls; a leader whose loss perhaps falls is extended first."""
        if any(fall(runner.curve) > LEARNS for runner in runners):
            return True
        order = standings(runners)
        if not order or fall(order[0][0].curve) < MAYBE_LEARNS:
            return False
        leader = order[0][0]
        yield from self._enter(leader.strategy, 2 * leader.seconds, "learning rate")
        return not leader.out and fall(leader.curve) > LEARNS

    def _tune_momentum(self) -> Probing:
        if self._momentum_step > 0:
            yield from self._line(momentum_step, self._momentum_step, "momentum")

    def _line(self, move: Move, step: float, name: str) -> Probing:
        """Steps down, or up if that is worse, while it gets better; then takes the peak."""
        assert self.best is not None
        centre, seconds = self.best, self._prober.length_s([self.best.groups])
        entered = yield from self._enter(centre, seconds, name)
        found = [] if entered is None else [(0.0, entered)]
        for side in (-1, 1):
            for k in range(1, MOST_STEPS + 1):
                strategy = move(centre, side * k * step)
                entered = None
                if strategy is not None:
                    entered = yield from self._enter(strategy, seconds, name)
                if entered is None or any(entered is known for _, known in found):
                    break
                found.append((side * k * step, entered))
                if standings([runner for _, runner in found])[0][0] is not entered:
                    break
            if k > 1:
                break
        if found:
            speed = {id(r): score.value for r, score in standings([r for _, r in found])}
            points = sorted((x, speed[id(runner)]) for x, runner in found)
            self.best = move(centre, peak([x for x, _ in points], [y for _, y in points])) or centre

    def _climb_groups(self) -> Probing:
        """More groups while that is faster, else fewer while that is."""
        for direction in (1, -1):
            before = self.best
            while (yield from self._step_groups(direction)):
                pass
            if self.best is not before:
                return

    def _step_groups(self, direction: int) -> Generator[Request, Outcome, bool]:
        assert self.best is not None
        i = self._ladder.index(self.best.groups) + direction
        if not 0 <= i < len(self._ladder):
            return False
        g, here = self._ladder[i], self.best.groups
        pace_s = self._prober.seconds_per_update
        if direction > 0 and pace_s(g) > MUST_FALL_TO * pace_s(here):
            return False
        challenger = groups_step(self.best, g, self._momentum_step > 0)
        seconds = self._prober.length_s([g, here])
        ours = yield from self._enter(self.best, seconds, "groups")
        theirs = yield from self._enter(challenger, seconds, "groups")
        if theirs is None:
            return False
        if ours:
            speed = {id(runner): score.value for runner, score in standings([ours, theirs])}
            if speed[id(theirs)] + EARLY_PENALTY * direction < speed[id(ours)]:
                return False
        self.best = challenger
        return True

    def _enter(self, strategy: Strategy, seconds: float, reason: str) -> Entry:
        """The runner of a strategy, or of one too close to tell apart, brought to ``seconds``.

        None if that diverges, or would by what is known.
        """
        for runner in self.pool:
            if alike(runner.strategy, strategy):
                if not safe(runner.strategy, self._prober.diverged):
                    return None
                yield from self._prober.run_to(runner, seconds, f"{reason}: extended")
                if runner.out:
                    self.pool.remove(runner)
                    return None
                return runner
        if not safe(strategy, self._prober.diverged):
            return None
        runner = Runner(strategy=strategy, checkpoint=None)
        yield from self._prober.run_to(runner, seconds, reason)
        if runner.out:
            return None
        self.pool.append(runner)
        return runner
