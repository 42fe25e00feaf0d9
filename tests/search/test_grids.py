"""Invariants of ladders, grids and steps."""

import itertools
import math

import pytest

from omnivore_ray.search.grids import (
    MAX_MOMENTUM,
    MIN_MOMENTUM,
    group_ladder,
    groups_step,
    momentum_step,
    published_grid,
    rate_step,
    safe,
    with_momentum,
)
from omnivore_ray.strategy import Strategy

MOMENTA = (0.0, 0.3, 0.6, 0.9)


def gain(strategy: Strategy) -> float:
    return strategy.learning_rate / (1 - strategy.momentum)


@pytest.mark.parametrize("num_devices", range(1, 40))
def test_ladder_climbs_from_one_to_all_devices_at_most_doubling(num_devices: int) -> None:
    ladder = group_ladder(num_devices)
    assert ladder[0] == 1 and ladder[-1] == num_devices
    assert all(a < b <= 2 * a for a, b in itertools.pairwise(ladder))


@pytest.mark.parametrize("momentum", MOMENTA)
def test_published_grid_leaves_five_probes_none_of_which_cannot_win(momentum: float) -> None:
    grid = published_grid(4, 0.1, momentum, MOMENTA)
    assert len(grid) == len(set(grid)) == 5
    for strategy in grid:
        if strategy.learning_rate == 0.1:
            assert strategy.momentum <= momentum
        else:
            assert strategy.learning_rate == pytest.approx(0.01)
            assert strategy.momentum >= momentum


def test_only_what_is_milder_than_a_diverged_strategy_is_safe() -> None:
    diverged = [Strategy(groups=4, learning_rate=0.1, momentum=0.6)]
    assert not safe(Strategy(groups=4, learning_rate=0.1, momentum=0.6), diverged)
    assert not safe(Strategy(groups=4, learning_rate=0.2, momentum=0.9), diverged)
    assert safe(Strategy(groups=4, learning_rate=0.2, momentum=0.5), diverged)
    assert safe(Strategy(groups=4, learning_rate=0.05, momentum=0.9), diverged)
    assert safe(Strategy(groups=2, learning_rate=0.2, momentum=0.9), diverged)


@pytest.mark.parametrize("momentum", [-0.5, 0.0, 0.7, 0.95])
def test_another_momentum_keeps_the_gain(momentum: float) -> None:
    before = Strategy(groups=2, learning_rate=0.1, momentum=0.3)
    after = with_momentum(before, momentum)
    assert after.momentum == momentum and gain(after) == pytest.approx(gain(before))


def test_momentum_steps_stay_in_range_and_go_negative() -> None:
    strategy: Strategy | None = Strategy(learning_rate=0.1, momentum=0.0)
    seen = []
    while strategy is not None:
        seen.append(strategy.momentum)
        strategy = momentum_step(strategy, -0.3)
    assert seen == pytest.approx([0.0, -0.3, -0.6])
    strategy = Strategy(learning_rate=0.1, momentum=0.6)
    while strategy is not None:
        assert MIN_MOMENTUM <= strategy.momentum <= MAX_MOMENTUM
        strategy = momentum_step(strategy, 0.3)


@pytest.mark.parametrize("momentum_too", [True, False])
def test_groups_there_and_back_is_where_it_began(momentum_too: bool) -> None:
    before = Strategy(groups=2, learning_rate=0.1, momentum=0.4)
    there = groups_step(before, 16, momentum_too)
    assert there.groups == 16 and gain(there) < gain(before)
    assert (there.momentum < before.momentum) == momentum_too
    back = groups_step(there, 2, momentum_too)
    assert back.learning_rate == pytest.approx(before.learning_rate)
    assert back.momentum == pytest.approx(before.momentum)


def test_rate_steps_multiply() -> None:
    assert rate_step(Strategy(learning_rate=0.1), math.log(3)).learning_rate == pytest.approx(0.3)
