"""Time to target as a product of parts, and curves extrapolated to a target."""

from __future__ import annotations

import math

import numpy as np
import pytest

from omnivore_ray.efficiency.convergence import (
    best_groups,
    hardware_efficiency_penalty,
    statistical_efficiency_penalty,
    time_to_target,
    updates_to_target,
)
from omnivore_ray.efficiency.hardware import HardwareModel


def test_time_is_the_product_of_its_parts_and_of_its_penalties() -> None:
    rng = np.random.default_rng(0)
    for _ in range(100):
        model = HardwareModel(num_devices=16, t_compute=1.0, t_head=10 ** rng.uniform(-3, 0))
        groups = np.array([1, 2, 4, 8, 16])
        he = model.seconds_per_update(groups)
        se = 500 * np.cumprod(rng.uniform(1, 2.5, 5))
        seconds = time_to_target(he, se)
        hardware = hardware_efficiency_penalty(he, he[0])
        statistical = statistical_efficiency_penalty(se, se[0])
        np.testing.assert_allclose(seconds, seconds[0] * hardware * statistical)
        assert hardware[0] == statistical[0] == 1
        assert np.all(hardware <= 1 + 1e-12) and np.all(statistical >= 1)
        best = best_groups(groups, he, se)
        assert seconds[groups == best][0] == seconds.min()
        assert np.all(time_to_target(he, 2 * se) == 2 * seconds)


def test_best_groups_ignores_what_never_arrives_and_prefers_fewer() -> None:
    assert best_groups([1, 2, 4], [4.0, 2.0, 0.1], [100, 200, math.inf]) == 1
    assert best_groups([4, 2, 1], [0.1, 2.0, 4.0], [math.nan, 150, 100]) == 2
    with pytest.raises(ValueError, match="no number of groups"):
        best_groups([1, 2], [1.0, 1.0], [math.inf, math.nan])


def curve(
    rng: np.random.Generator, *, share: float, noise: float
) -> tuple[np.ndarray, np.ndarray, float, float]:
    """Updates and losses up to ``share`` of the way to a target, the target, and the truth."""
    a, b, c = 10 ** rng.uniform(-3.5, -1.5), 2.3, 10 ** rng.uniform(1, 2.5)
    beta, truth = rng.uniform(0.4, 1.2), rng.uniform(1000, 10_000)
    x = np.linspace(0, share * truth, 201)[1:]
    factor = np.maximum(0.1, 1 + noise * rng.standard_normal(200))
    loss = (a + b * (1 + x / c) ** -beta) * factor
    return x, loss, float(a + b * (1 + truth / c) ** -beta), float(truth)


@pytest.mark.parametrize(
    ("share", "noise", "ratio"),
    [(0.35, 0.0, 1.05), (0.35, 0.1, 1.3), (0.7, 0.3, 1.3), (1.3, 0.3, 1.15)],
)
def test_extrapolation_is_near_the_truth_and_knows_how_near(
    share: float, noise: float, ratio: float
) -> None:
    rng = np.random.default_rng(7)
    ratios, covered = [], []
    for _ in range(25):
        x, loss, target, truth = curve(rng, share=share, noise=noise)
        found = updates_to_target(x, loss, target)
        if math.isfinite(found.updates):
            ratios.append(abs(math.log(found.updates / truth)))
            covered.append(abs(found.updates - truth) <= 2.5 * found.standard_error)
    assert len(ratios) >= 22
    assert np.median(ratios) < math.log(ratio)
    assert np.mean(covered) >= 0.7


def test_noisier_and_shorter_curves_are_less_certain() -> None:
    def uncertainty(share: float, noise: float) -> float:
        found = [
            updates_to_target(*curve(np.random.default_rng(seed), share=share, noise=noise)[:3])
            for seed in range(12)
        ]
        return float(np.median([f.standard_error / f.updates for f in found]))

    assert uncertainty(0.7, 0.02) < uncertainty(0.7, 0.1) < uncertainty(0.7, 0.3)
    assert uncertainty(0.9, 0.1) < uncertainty(0.3, 0.1)


def test_a_lower_target_takes_longer() -> None:
    x, loss, target, _ = curve(np.random.default_rng(1), share=0.8, noise=0.1)
    updates = [updates_to_target(x, loss, target * f).updates for f in (3.0, 2.0, 1.2, 1.0)]
    assert np.all(np.diff(updates) > 0)


def test_scales_of_updates_and_loss_do_not_matter() -> None:
    x, loss, target, _ = curve(np.random.default_rng(2), share=0.6, noise=0.1)
    plain, scaled = (
        updates_to_target(x, loss, target),
        updates_to_target(3 * x, 9 * loss, 9 * target),
    )
    assert scaled.updates == pytest.approx(3 * plain.updates, rel=0.01)
    assert scaled.standard_error == pytest.approx(3 * plain.standard_error, rel=0.05)


def test_what_cannot_be_said_is_nan_or_inf_with_a_reason() -> None:
    x = np.arange(1.0, 401.0)
    rng = np.random.default_rng(3)
    flat = updates_to_target(x, 1 + 0.1 * rng.standard_normal(400), 0.5)
    assert math.isnan(flat.updates) and "noise" in flat.reason
    assert math.isnan(updates_to_target(x, x, 0.5).updates)
    short = updates_to_target(x[:3], 1 / x[:3], 0.01)
    assert math.isnan(short.updates) and "too few" in short.reason
    broken = np.where(x == 9, math.nan, 1 / x)
    assert "finite" in updates_to_target(x, broken, 0.01).reason
    floor = updates_to_target(x, 0.5 + np.exp(-x / 30), 0.3)
    assert math.isinf(floor.updates) and "levels off" in floor.reason


def test_a_target_already_passed_lies_inside_the_curve() -> None:
    x = np.arange(1.0, 401.0)
    loss = 2.3 * (1 + x / 20) ** -0.8
    found = updates_to_target(x, loss, float(loss[99]))
    assert found.updates == pytest.approx(100, rel=0.02)
    assert updates_to_target(x, loss, 5.0).updates == 0


def test_bad_input_is_named() -> None:
    with pytest.raises(ValueError, match="rising"):
        updates_to_target([2.0, 1.0], [1.0, 1.0], 0.5)
    with pytest.raises(ValueError, match="target=0"):
        updates_to_target([1.0, 2.0], [1.0, 1.0], 0.0)
    with pytest.raises(ValueError, match="seconds_per_update"):
        time_to_target([1.0, 0.0], 5)
    with pytest.raises(ValueError, match="at_one_group=0"):
        statistical_efficiency_penalty([1.0], 0.0)
