"""Scalars from timing runs: recovered when the runs can tell, sensible when they cannot."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from omnivore_ray.efficiency.fitting import HardwareFit, Timing, fit
from omnivore_ray.efficiency.hardware import HardwareModel

TRUTH = HardwareModel(num_devices=8, t_compute=1.0, t_link=0.02, t_head=0.1, cv=0.05)
ALL = np.arange(1, 9)


def timings(model: HardwareModel, groups: list[int], noise: float = 0.0, seed: int = 0) -> Any:
    rng = np.random.default_rng(seed)
    return [
        Timing(
            g=g,
            seconds_per_update=float(model.seconds_per_update(g))
            * float(np.exp(noise * rng.standard_normal())),
        )
        for g in groups
    ]


def worst_error(found: HardwareFit, truth: HardwareModel) -> float:
    predicted = found.model.seconds_per_update(ALL)
    return float(np.max(np.abs(predicted / truth.seconds_per_update(ALL) - 1)))


def random_truth(rng: np.random.Generator) -> HardwareModel:
    return HardwareModel(
        num_devices=8,
        t_compute=10 ** rng.uniform(-2, 1),
        t_link=10 ** rng.uniform(-3, -0.8),
        t_head=10 ** rng.uniform(-3, -0.5),
        cv=0.05,
    )


def test_runs_that_tell_give_the_scalars_back() -> None:
    found = fit(timings(TRUTH, [1, 4, 8]), num_devices=8, cv=0.05)
    assert found.residual < 0.01
    assert found.model.t_compute == pytest.approx(1.0, rel=0.05)
    assert found.model.t_link == pytest.approx(0.02, rel=0.1)
    assert found.model.t_head == pytest.approx(0.1, rel=0.02)
    assert found.undetermined == ()


def test_three_noisy_runs_predict_all_groups() -> None:
    rng = np.random.default_rng(1)
    errors = []
    for seed in range(12):
        truth = random_truth(rng)
        found = fit(timings(truth, [1, 3, 8], 0.03, seed), num_devices=8, cv=0.05)
        errors.append(worst_error(found, truth))
    assert np.median(errors) < 0.06
    assert max(errors) < 0.25


def test_two_runs_predict_what_lies_between() -> None:
    rng = np.random.default_rng(2)
    errors = []
    for _ in range(12):
        truth = random_truth(rng)
        found = fit(timings(truth, [1, 8]), num_devices=8, cv=0.05)
        assert found.residual < 0.05
        errors.append(worst_error(found, truth))
    assert np.median(errors) < 0.1


def test_measured_parts_pin_their_scalars_whatever_the_total_says() -> None:
    truth = HardwareModel(
        num_devices=6, t_compute=2.0, t_link=0.03, t_head=0.2, t_server=0.01, cv=0.3
    )
    runs = [
        Timing(
            g=g,
            seconds_per_update=1.1 * float(truth.seconds_per_update(g)),
            compute_s=truth.compute_seconds(g),
            link_s=0.03 * truth.copies_per_update(g),
            head_s=0.2,
            server_s=0.01,
        )
        for g in (1, 4)
    ]
    found = fit(runs, num_devices=6, cv=0.3)
    for name in ("t_compute", "t_link", "t_head", "t_server"):
        assert getattr(found.model, name) == pytest.approx(getattr(truth, name), rel=1e-3)
    assert found.residual == pytest.approx(np.log(1.1), rel=0.1)
    assert found.undetermined == ()


def test_one_measured_part_leaves_the_rest_to_be_fitted() -> None:
    runs = [
        Timing(
            g=t.g,
            seconds_per_update=t.seconds_per_update,
            link_s=0.02 * TRUTH.copies_per_update(t.g),
        )
        for t in timings(TRUTH, [1, 8])
    ]
    found = fit(runs, num_devices=8, cv=0.05)
    assert found.model.t_link == pytest.approx(0.02)
    assert found.model.t_head == pytest.approx(0.1, rel=0.05)
    assert found.model.t_compute == pytest.approx(1.0, rel=0.05)


def test_one_run_gives_the_devices_all_the_time() -> None:
    found = fit([Timing(g=2, seconds_per_update=0.5)], num_devices=4)
    assert found.model.t_compute == pytest.approx(2.0, rel=1e-3)
    assert found.model.t_link == found.model.t_head == found.model.t_server == 0
    assert found.undetermined == ("t_link", "t_head")


def test_noise_adds_no_terms_and_makes_none_negative() -> None:
    devices_only = HardwareModel(num_devices=8, t_compute=1.0)
    for seed in range(4):
        noisy = timings(devices_only, [1, 2, 8], 0.005, seed)
        found = fit(noisy, num_devices=8)
        assert found.model.t_link == found.model.t_head == 0


def test_timings_that_no_model_explains_give_no_negative_scalar() -> None:
    rising = [Timing(g=g, seconds_per_update=0.1 * g**0.3) for g in (1, 4, 8)]
    found = fit(rising, num_devices=8)
    assert min(found.model.t_compute, found.model.t_link, found.model.t_head) >= 0
    assert found.residual > 0.1


def test_fit_scales_with_the_unit_of_time() -> None:
    slow = fit(timings(TRUTH, [1, 2, 8]), num_devices=8, cv=0.05).model
    milli = [
        Timing(g=t.g, seconds_per_update=1e-3 * t.seconds_per_update)
        for t in timings(TRUTH, [1, 2, 8])
    ]
    fast = fit(milli, num_devices=8, cv=0.05).model
    np.testing.assert_allclose(
        1e3 * fast.seconds_per_update(ALL), slow.seconds_per_update(ALL), rtol=0.01
    )


def test_bad_input_is_named() -> None:
    with pytest.raises(ValueError, match="at least one timing run"):
        fit([], num_devices=2)
    with pytest.raises(ValueError, match="seconds_per_update=0"):
        Timing(g=1, seconds_per_update=0.0)
    with pytest.raises(ValueError, match="head_s=-1"):
        Timing(g=1, seconds_per_update=1.0, head_s=-1.0)
    with pytest.raises(ValueError, match="from 1 to 2"):
        fit([Timing(g=3, seconds_per_update=1.0)], num_devices=2)
