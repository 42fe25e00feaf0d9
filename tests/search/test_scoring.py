"""Scores of curves whose truth is known."""

import math

import numpy as np
import pytest

from omnivore_ray.search.scoring import (
    exponent,
    fall,
    log_speeds,
    monotone,
    pace,
    peak,
    tail_loss,
    without_fill,
)


def power_law(speed: float, n: int = 120, noise: float = 0.0, seed: int = 0) -> list:
    """Loss (1 + speed t)^-0.7 at one update a second."""
    rng = np.random.default_rng(seed)
    t = np.arange(1, n + 1)
    loss = (1 + speed * t / 20) ** -0.7 * (1 + noise * rng.standard_normal(n))
    return list(zip(t.tolist(), t.astype(float).tolist(), loss.tolist(), strict=True))


def test_tail_error_is_the_standard_error_of_the_tail_mean() -> None:
    truth = np.mean([p[2] for p in power_law(1.0) if p[1] > 80])
    z = []
    for seed in range(400):
        score = tail_loss(power_law(1.0, noise=0.1, seed=seed), 120)
        z.append((score.value - truth) / score.error)
    assert np.mean(z) == pytest.approx(0, abs=0.2)
    assert np.std(z) == pytest.approx(1, abs=0.15)


def test_a_falling_loss_is_not_noise() -> None:
    line = [(n, float(n), 2.0 - n / 100) for n in range(1, 101)]
    assert tail_loss(line, 100).error < 1e-9


def test_a_tail_of_few_points_has_no_known_error() -> None:
    assert tail_loss([(10, 1.0, 2.0), (20, 2.0, 1.0)], 2.0).error == math.inf


@pytest.mark.parametrize("ratio", [0.8, 0.5, 0.25])
def test_log_speed_is_the_logarithm_of_the_ratio_of_speeds(ratio: float) -> None:
    best, other = log_speeds([power_law(1.0), power_law(ratio)], 120)
    assert best.value == 0.0
    assert other.value == pytest.approx(math.log(ratio), abs=0.12)


def test_log_speeds_do_not_depend_on_order_or_scale_of_the_loss() -> None:
    curves = [power_law(s, noise=0.05, seed=i) for i, s in enumerate((0.5, 1.0, 0.7))]
    values = [score.value for score in log_speeds(curves, 120)]
    assert values == [s.value for s in log_speeds(curves[::-1], 120)][::-1]
    scaled = [[(n, t, 7 * loss) for n, t, loss in curve] for curve in curves]
    assert values == pytest.approx([s.value for s in log_speeds(scaled, 120)])


def test_a_curve_that_never_falls_has_the_least_speed_and_no_nan() -> None:
    flat = [(n, float(n), 3.0) for n in range(1, 121)]
    for score in log_speeds([power_law(1.0), flat], 120):
        assert math.isfinite(score.value) and score.error > 0


def test_monotone_never_rises_and_keeps_the_mean() -> None:
    curve = power_law(1.0, noise=0.3)
    times, losses = monotone(curve)
    assert np.all(np.diff(losses) < 0) and np.all(np.diff(times) > 0)
    assert losses.max() <= max(p[2] for p in curve) and losses.min() >= min(p[2] for p in curve)


@pytest.mark.parametrize("top", [-0.4, 0.1, 0.45])
def test_peak_of_a_parabola_is_found_between_the_points(top: float) -> None:
    xs = [-1.0, 0.0, 1.0]
    assert peak(xs, [-((x - top) ** 2) for x in xs]) == pytest.approx(top)


def test_peak_stays_half_way_to_the_neighbours_and_at_the_edge() -> None:
    rng = np.random.default_rng(3)
    for _ in range(200):
        xs, ys = np.sort(rng.normal(size=4)).tolist(), rng.normal(size=4).tolist()
        i, x = int(np.argmax(ys)), peak(xs, ys)
        low = xs[i] if i in (0, 3) else (xs[i - 1] + xs[i]) / 2
        high = xs[i] if i in (0, 3) else (xs[i] + xs[i + 1]) / 2
        assert low - 1e-12 <= x <= high + 1e-12


def test_filling_the_pipeline_is_not_counted() -> None:
    """Four groups whose first cycle takes 10 s and that then update every second."""
    curve = [(n, 9.0 + n, 1.0 / n) for n in range(1, 41)]
    assert pace(curve, 4) == pytest.approx(1.0)
    assert without_fill(curve, 4)[0][1] == pytest.approx(1.0)
    assert without_fill(curve, 4)[-1][1] == pytest.approx(40.0)
    assert without_fill([], 4) == []


def test_exponent_of_a_power_law_and_of_a_loss_that_does_not_fall() -> None:
    late = [(n, float(n), (1000.0 + n) ** -0.6) for n in range(1, 2001, 40)]
    assert exponent(late, 1000.0) == pytest.approx(0.6, abs=0.02)
    assert exponent([(n, float(n), 1.0 + n) for n in range(1, 100)], 10.0) == 0.0


def test_noise_alone_hardly_ever_falls_clearly() -> None:
    clear = 0
    for seed in range(300):
        rng = np.random.default_rng(seed)
        flat = [(n, float(n), float(1 + 0.2 * rng.standard_normal())) for n in range(1, 61)]
        clear += fall(flat) > 3
    assert clear <= 3
    assert fall(power_law(1.0, noise=0.2)) > 3
