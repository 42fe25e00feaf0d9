"""The published algorithm does what PAPER section 5 says, told by scripted outcomes."""

import itertools
from collections.abc import Callable

from omnivore_ray.search.algorithm import OmnivoreAlgorithm
from omnivore_ray.search.published import PublishedAlgorithm
from omnivore_ray.strategy import Outcome, Request, Strategy

Loss = Callable[[Strategy], float]


def outcome(loss: float, seconds_per_update: float, updates: int = 60) -> Outcome:
    points = [(n, n * seconds_per_update, loss) for n in range(1, updates + 1)]
    return Outcome(
        status="completed",
        updates=updates,
        seconds=updates * seconds_per_update,
        loss=loss,
        curve=tuple(points),
        checkpoint_path="somewhere",
    )


def play(
    algorithm: PublishedAlgorithm, loss: Loss, pace_s: Callable[[int], float], limit: int = 60
) -> list[Request]:
    asked: list[Request] = []
    while len(asked) < limit and (request := algorithm.ask()) is not None:
        asked.append(request)
        value = loss(request.strategy)
        if value == float("inf"):
            told = Outcome(status="diverged", updates=5, seconds=1.0, reason="loss is inf")
        else:
            told = outcome(value, pace_s(request.strategy.groups))
        algorithm.tell(request, told)
    return asked


def distance(rate: float, momentum: float) -> Loss:
    """Best at (rate, momentum), the same at every g."""
    return lambda s: 1 + abs(s.learning_rate - rate) + abs(s.momentum - momentum)


def test_cold_start_grid_at_one_group_and_five_probes_at_each_next() -> None:
    asked = play(PublishedAlgorithm(4), distance(0.01, 0.6), lambda g: 1 / g)
    cold = [r for r in asked if r.kind == "probe" and r.round == 0]
    by_groups = {g: [r.strategy for r in cold if r.strategy.groups == g] for g in (1, 2, 4)}
    assert [s.learning_rate for s in by_groups[1]] == [0.1, 0.01, 0.001, 0.0001]
    assert {s.momentum for s in by_groups[1]} == {0.9}
    assert len(by_groups[2]) == len(by_groups[4]) == 5
    assert all(r.budget_s == 60 and r.resume_from is None for r in cold)


def test_groups_stop_rising_after_one_probe_that_is_not_a_tenth_faster() -> None:
    asked = play(
        PublishedAlgorithm(8), distance(0.01, 0.6), lambda g: {1: 1.0, 2: 0.5}.get(g, 0.48)
    )
    cold = [r.strategy.groups for r in asked if r.kind == "probe" and r.round == 0]
    assert cold.count(2) == 5 and cold.count(4) == 1 and 8 not in cold


def test_five_probes_of_200_s_come_before_each_stretch_of_10000_s() -> None:
    asked = play(PublishedAlgorithm(2, rounds=2), distance(0.01, 0.9), lambda g: 1 / g)
    later = asked[next(i for i, r in enumerate(asked) if r.kind == "train") :]
    assert [r.kind for r in later] == ["train", *["probe"] * 5, "train", *["probe"] * 5, "train"]
    assert {r.budget_s for r in later} == {200.0, 10_000.0}
    assert {r.resume_from for r in later[1:]} == {"somewhere"}


def test_the_learning_rate_never_rises() -> None:
    asked = play(PublishedAlgorithm(8), distance(0.3, 0.0), lambda g: 1 / g)
    rates = [r.strategy.learning_rate for r in asked if r.kind == "train"]
    assert all(a >= b for a, b in itertools.pairwise(rates))


def test_among_nearly_equal_losses_the_highest_rate_then_momentum_is_taken() -> None:
    algorithm = PublishedAlgorithm(1, rounds=1)
    asked = play(algorithm, lambda s: 1.0 + 0.001 * s.learning_rate, lambda g: 1.0)
    assert asked[-1].kind == "train"
    assert algorithm.best == Strategy(groups=1, learning_rate=0.0001, momentum=0.9)


def test_momentum_zero_halves_the_groups_around_momentum_six_tenths() -> None:
    def loss(s: Strategy) -> float:
        return 1 + (s.momentum - 0.5 if s.groups == 4 else abs(s.momentum - 0.3)) + s.learning_rate

    asked = play(PublishedAlgorithm(4, rounds=1), loss, lambda g: 1 / g)
    in_round = [r.strategy for r in asked if r.kind == "probe" and r.round == 1]
    assert [s.groups for s in in_round] == [4] * 5 + [2] * 5
    assert max(s.momentum for s in in_round[5:8]) == 0.6
    assert asked[-1].strategy.groups == 2 and asked[-1].strategy.momentum == 0.3


def test_momentum_zero_at_one_group_goes_on() -> None:
    algorithm = PublishedAlgorithm(1, rounds=3)
    play(algorithm, lambda s: 1 + s.momentum + s.learning_rate, lambda g: 1.0)
    assert algorithm.failure is None and algorithm.best is not None
    assert algorithm.best.momentum == 0


def test_what_dominates_a_diverged_probe_is_skipped() -> None:
    def loss(s: Strategy) -> float:
        if s.groups == 2 and s.learning_rate > 0.05 and s.momentum >= 0.3:
            return float("inf")
        return 2 - s.learning_rate - s.momentum / 10

    asked = play(PublishedAlgorithm(2, rounds=0), loss, lambda g: 1 / g)
    at_two = [
        (r.strategy.learning_rate, r.strategy.momentum)
        for r in asked
        if r.kind == "probe" and r.strategy.groups == 2
    ]
    assert at_two == [(0.1, 0.0), (0.1, 0.3), (0.01, 0.9)]


def test_all_diverged_is_a_failure_in_words() -> None:
    algorithm = PublishedAlgorithm(4)
    play(algorithm, lambda s: float("inf"), lambda g: 1 / g)
    assert algorithm.ask() is None and "diverged" in str(algorithm.failure)


def test_ours_knows_the_published_one() -> None:
    assert isinstance(OmnivoreAlgorithm.published(4), PublishedAlgorithm)
