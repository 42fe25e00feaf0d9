"""The benchmark's surfaces against their definition: recursion, brute force, event formula."""

import math
import sys
from pathlib import Path

import numpy as np
import pytest

from omnivore_ray.strategy import Request, Strategy

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

from synthetic.clock import Clock
from synthetic.draws import CLASSES, belongs, draw, surfaces
from synthetic.surface import State, Surface


def recursion(surface: Surface, strategy: Strategy, updates: int) -> tuple[float, float]:
    """x and e by the issue's recursion, one update at a time."""
    g, u = strategy.groups, surface.step(strategy)
    off = (strategy.momentum - surface.best_momentum(g)) / surface.w
    x = e = 0.0
    for _ in range(updates):
        fresh = 1 + surface.A * math.exp(-x / (0.05 * surface.L + 10))
        penalty = 1 + surface.pi * (g - 1) ** surface.p * fresh
        x += u * math.exp(1 - u) * math.exp(-(off**2) / 2) / penalty
        e += (surface.c * u - e) * min(1, u / 20)
    return x, e


@pytest.mark.parametrize("seed", range(8))
def test_flow_follows_the_recursion(seed: int) -> None:
    surface = draw(np.random.default_rng(seed), L=500)
    for g in (1, 4, 32):
        mu = surface.best_momentum(g) - 0.1
        strategy = Strategy(groups=g, learning_rate=surface.learning_rate(g, 0.7, mu), momentum=mu)
        n = np.array([400.0])
        x = surface.progress(g, float(surface.speed(g, 0.7, mu)), 0.0, n)[0]
        e = surface.noise_ball(0.7, 0.0, n)[0]
        assert (x, e) == pytest.approx(recursion(surface, strategy, 400), rel=0.01)


@pytest.mark.parametrize("seed", range(4))
def test_a_fixed_strategy_arrives_when_the_truth_says(seed: int) -> None:
    surface = draw(np.random.default_rng(seed), L=2000)
    best_s, best = surface.best_fixed()
    request = Request(kind="train", strategy=best)
    outcome, _ = surface.run(request, State(), np.random.default_rng(0), 10 * best_s)
    assert outcome.status == "target_reached"
    assert outcome.seconds == pytest.approx(best_s, rel=0.05)


@pytest.mark.parametrize("seed", range(4))
def test_no_strategy_of_a_dense_grid_beats_the_best_fixed_one(seed: int) -> None:
    surface = draw(np.random.default_rng(seed), L=8000)
    best_s, _ = surface.best_fixed()
    rng = np.random.default_rng(seed)
    for _ in range(400):
        g = int(rng.choice(surface.groups))
        mu = surface.best_momentum(g) + 0.2 * rng.normal()
        mu = float(np.clip(mu, -0.9, 0.97))
        rate = surface.learning_rate(g, math.exp(rng.uniform(-2, 1)), mu)
        there = surface.time_to_target(Strategy(groups=g, learning_rate=rate, momentum=mu))
        assert there >= 0.999 * best_s


def test_every_class_is_drawn_and_is_what_it_says() -> None:
    drawn = surfaces(len(CLASSES), seed=5, L=2000)
    assert [surface.name for surface in drawn] == list(CLASSES)
    assert all(belongs(surface, surface.name) for surface in drawn)


@pytest.mark.parametrize("g", [1, 2, 4, 8, 16, 32])
def test_clock_keeps_the_pace_of_the_paper_formula(g: int) -> None:
    clock = Clock(num_devices=32, compute_s=3.5, link_s=0.015, head_s=0.22, jitter="steady", seed=1)
    k = 32 / g
    cycle_s = 3.5 / k + k * 0.015 + 0.22
    assert clock.pace(g) == pytest.approx(max(0.22, k * 0.015, cycle_s / g), rel=0.1)


def test_clock_counts_updates_as_it_tells_seconds() -> None:
    clock = Clock(
        num_devices=8, compute_s=1.0, link_s=0.01, head_s=0.05, jitter="exponential", seed=2
    )
    for n in (1, 7, 100, 5000):
        at_s = float(clock.seconds(4, np.array([n]))[0])
        assert clock.updates(4, at_s * 1.000001) == n
