"""Implicit momentum: by a queue of groups, by the recursion, and by the table of roots."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from omnivore_ray.efficiency.statistical import (
    compensated_momentum,
    effective_learning_rate,
    expected_path,
    gain,
    implicit_momentum,
    measure_staleness,
    measured_momentum,
    quadratic_rate,
    total_momentum,
)

Array = NDArray[np.float64]
Draw = Callable[[np.random.Generator], float]


def exponential(rng: np.random.Generator) -> float:
    return float(rng.exponential())


def near_equal(rng: np.random.Generator) -> float:
    return float(1 + 0.02 * rng.standard_normal())


def versions_read(
    g: int, num_updates: int, draw: Draw, rng: np.random.Generator
) -> NDArray[np.int64]:
    """The version that each update's group had read, from a queue of g groups (k = 1)."""
    queue = [(draw(rng), group, 0) for group in range(g)]
    heapq.heapify(queue)
    read = np.empty(num_updates, dtype=np.int64)
    for version in range(num_updates):
        at, group, read[version] = queue[0]
        heapq.heapreplace(queue, (at + draw(rng), group, version + 1))
    return read


def staleness(g: int, draw: Draw) -> NDArray[np.int64]:
    read = versions_read(g, 12_000, draw, np.random.default_rng(g))
    return (np.arange(len(read)) - read)[200:]


@pytest.mark.parametrize("g", [2, 4, 8, 16])
def test_exponential_group_times_give_one_minus_one_over_g(g: int) -> None:
    found = measure_staleness(staleness(g, exponential))
    assert found.mean == pytest.approx(g - 1, abs=0.05)
    assert found.from_q_0 == pytest.approx(1 - 1 / g, abs=0.03)
    assert found.from_variance == pytest.approx(1 - 1 / g, abs=0.03)
    assert implicit_momentum(g) == 1 - 1 / g


@pytest.mark.parametrize("g", [2, 4, 8, 16])
def test_near_equal_times_have_the_mean_and_not_the_momentum(g: int) -> None:
    found = measure_staleness(staleness(g, near_equal))
    assert found.mean == pytest.approx(g - 1, abs=0.05)
    assert found.from_q_0 > 0.95
    assert found.from_variance < 1 - 1 / g - 0.4
    assert found.from_q_0 - found.from_variance > 0.4


def test_geometric_staleness_of_any_parameter_is_recovered() -> None:
    rng = np.random.default_rng(0)
    for mu_S in (0.1, 0.5, 0.9):
        found = measure_staleness(rng.geometric(1 - mu_S, 40_000) - 1)
        assert found.from_q_0 == pytest.approx(mu_S, abs=0.02)
        assert found.from_variance == pytest.approx(mu_S, abs=0.02)
    assert measure_staleness([0, 0, 0])[1:] == (1.0, 0.0, 0.0)


def queue_on_quadratic(
    g: int, *, lr: float, mu_L: float, num_updates: int, draw: Draw, num_runs: int
) -> tuple[Array, Array]:
    """Mean path and gradient of stale momentum SGD on w^2/2 with gradient noise, w_0 = 1."""
    paths, gradients = np.empty((num_runs, num_updates + 1)), np.empty((num_runs, num_updates))
    for run in range(num_runs):
        rng = np.random.default_rng((g, run))
        read = versions_read(g, num_updates, draw, rng)
        noise = rng.standard_normal(num_updates)
        path, velocity = paths[run], 0.0
        path[0] = 1.0
        for t in range(num_updates):
            gradients[run, t] = path[read[t]] + 0.5 * noise[t]
            velocity = mu_L * velocity - lr * gradients[run, t]
            path[t + 1] = path[t] + velocity
    return paths.mean(axis=0), gradients.mean(axis=0)


def distance(path: Array, expected: Array) -> float:
    return float(np.abs(path - expected).max())


@pytest.mark.parametrize(("g", "mu_L"), [(1, 0.5), (2, 0.0), (4, 0.0), (4, 0.5), (8, -0.3)])
def test_the_recursion_follows_a_queue_with_exponential_times(g: int, mu_L: float) -> None:
    lr, num_updates = 0.04, 120
    path, _ = queue_on_quadratic(
        g, lr=lr, mu_L=mu_L, num_updates=num_updates, draw=exponential, num_runs=300
    )
    mu_S = float(implicit_momentum(g))
    expected = expected_path([1.0], [1.0], lr=lr, mu_L=mu_L, mu_S=mu_S, num_updates=num_updates)
    assert distance(path, expected[:, 0]) < 0.035


def test_the_recursion_does_not_follow_near_equal_times() -> None:
    lr, g, num_updates = 0.12, 8, 60
    expected = expected_path(
        [1.0], [1.0], lr=lr, mu_L=0.0, mu_S=1 - 1 / g, num_updates=num_updates
    )[:, 0]
    path, _ = queue_on_quadratic(
        g, lr=lr, mu_L=0.0, num_updates=num_updates, draw=near_equal, num_runs=100
    )
    stale, _ = queue_on_quadratic(
        g, lr=lr, mu_L=0.0, num_updates=num_updates, draw=exponential, num_runs=300
    )
    assert distance(stale, expected) < 0.06
    assert distance(path, expected) > 0.2


BEST = {
    5: [(0.15, 1), (-0.22, 2.40), (-0.27, 4.86), (-0.29, 7.95), (-0.30, 11.1)],
    20: [(0.40, 1), (-0.18, 1.27), (-0.28, 2.90), (-0.31, 5.72), (-0.32, 10.1)],
    100: [(0.67, 1), (0.13, 2.21), (-0.28, 1.37), (-0.31, 2.90), (-0.32, 5.77)],
}


def best_on_quadratic(mu_S: float, curvatures: Array) -> tuple[float, float]:
    """Momentum and iterations per e-fold at the best learning rate, by a shrinking grid."""
    mu, step, mu_width, width = 0.2, 1.5, 0.75, 2.5
    best = math.inf
    for _ in range(9):
        for mu_L in np.linspace(max(mu - mu_width, -0.7), min(mu + mu_width, 0.95), 9):
            for factor in np.exp(np.linspace(-width, width, 13)):
                lr = step * factor / (1 - mu_S)
                rate = quadratic_rate(lr, float(mu_L), mu_S, curvatures)
                if rate < best:
                    best, at = rate, (float(mu_L), step * factor)
        (mu, step), mu_width, width = at, mu_width / 2, width / 2
    return mu, -1 / math.log(best)


@pytest.mark.parametrize("Q", BEST)
def test_roots_reproduce_the_table_of_quadratics(Q: int) -> None:
    curvatures = np.geomspace(1 / Q, 1, 7)
    _, reference = best_on_quadratic(0.0, curvatures)
    for g, (momentum, slowdown) in zip((1, 2, 4, 8, 16), BEST[Q], strict=True):
        found, iterations = best_on_quadratic(1 - 1 / g, curvatures)
        assert found == pytest.approx(momentum, abs=0.04)
        assert iterations / reference == pytest.approx(slowdown, rel=0.05)


def test_the_rate_is_that_of_the_recursion() -> None:
    rng = np.random.default_rng(1)
    for _ in range(20):
        mu_L, mu_S, lr = rng.uniform(-0.4, 0.8), rng.uniform(0, 0.9), rng.uniform(0.05, 1)
        curvatures = rng.uniform(0.3, 1, 3)
        path = expected_path(np.ones(3), curvatures, lr=lr, mu_L=mu_L, mu_S=mu_S, num_updates=400)
        size = np.abs(path).sum(axis=1)
        early, late = size[150:200].max(), size[350:400].max()
        assert (late / early) ** (1 / 200) == pytest.approx(
            quadratic_rate(lr, mu_L, mu_S, curvatures), rel=0.02
        )


def test_momenta_compose_commute_and_compensate() -> None:
    rng = np.random.default_rng(2)
    mu_L, mu_S = rng.uniform(-0.8, 0.95, 100), rng.uniform(0, 0.95, 100)
    total = total_momentum(mu_L, mu_S)
    np.testing.assert_allclose(total, total_momentum(mu_S, mu_L))
    assert np.all(total >= mu_L - 1e-12) and np.all(total < 1)
    np.testing.assert_allclose(compensated_momentum(total, mu_S), mu_L)
    assert compensated_momentum(0.5, 0.95) == -0.9
    assert compensated_momentum(0.9, 0.0) == pytest.approx(0.9)


def test_the_path_obeys_the_two_filter_recursion() -> None:
    rng = np.random.default_rng(5)
    for _ in range(20):
        mu_L, mu_S, lr, curvature = rng.uniform(0, 0.9, 4)
        w = expected_path([1.0], [curvature], lr=lr, mu_L=mu_L, mu_S=mu_S, num_updates=30)[:, 0]
        d = np.diff(w)
        step = float(effective_learning_rate(lr, mu_S)) * curvature * w[2:-1]
        np.testing.assert_allclose(
            d[2:], (mu_L + mu_S) * d[1:-1] - mu_L * mu_S * d[:-2] - step, atol=1e-9
        )


def test_gain_does_not_depend_on_staleness() -> None:
    """A constant gradient moves w by ``gain`` an update in the end, for every mu_S."""
    for mu_S in (0.0, 0.5, 0.9):
        tiny = 1e-9
        path = expected_path([1 / tiny], [tiny], lr=0.1, mu_L=0.6, mu_S=mu_S, num_updates=300)
        assert path[-2, 0] - path[-1, 0] == pytest.approx(float(gain(0.1, 0.6)), rel=1e-3)


def test_measured_momentum_reads_explicit_momentum_exactly_when_synchronous() -> None:
    rng = np.random.default_rng(3)
    gradients = rng.standard_normal((50, 4)) + 1
    steps, velocity = np.empty_like(gradients), np.zeros(4)
    for t in range(50):
        velocity = 0.7 * velocity - 0.1 * gradients[t]
        steps[t] = velocity
    assert measured_momentum(steps, gradients, lr=0.1) == pytest.approx(0.7)


@pytest.mark.parametrize(("g", "mu_L"), [(4, 0.0), (4, 0.5), (8, 0.3)])
def test_measured_momentum_needs_q_0_to_see_staleness(g: int, mu_L: float) -> None:
    path, gradients = queue_on_quadratic(
        g, lr=0.01, mu_L=mu_L, num_updates=120, draw=exponential, num_runs=200
    )
    steps = np.diff(path)[30:]
    q_0 = measure_staleness(staleness(g, exponential)).q_0
    total = float(total_momentum(mu_L, implicit_momentum(g)))
    assert measured_momentum(steps, gradients[30:], lr=0.01, q_0=q_0) == pytest.approx(
        total, abs=0.05
    )
    assert measured_momentum(steps, gradients[30:], lr=0.01) == pytest.approx(mu_L, abs=0.05)


def test_bad_input_is_named() -> None:
    with pytest.raises(ValueError, match="staleness"):
        measure_staleness([])
    with pytest.raises(ValueError, match="staleness"):
        measure_staleness([1, -1])
    with pytest.raises(ValueError, match="same"):
        measured_momentum([1.0, 2.0], [1.0], lr=0.1)
    assert math.isnan(measured_momentum([0.0, 0.0], [1.0, 1.0], lr=0.1))
