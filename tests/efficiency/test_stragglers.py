"""The slowest of k: known cases, and draws."""

from __future__ import annotations

import numpy as np
import pytest

from omnivore_ray.efficiency.stragglers import slowest_of


@pytest.mark.parametrize("k", [1, 2, 7, 32])
def test_exponential_times_give_the_harmonic_number(k: int) -> None:
    order = np.arange(1, k + 1)
    slowest = slowest_of(k, 1.0)
    assert slowest.mean == pytest.approx((1 / order).sum(), rel=1e-3)
    assert slowest.sd == pytest.approx(np.sqrt((1 / order**2).sum()), rel=1e-3)
    assert slowest.fastest == pytest.approx(1 / k, rel=1e-3)


@pytest.mark.parametrize("cv", [0.0, 1e-4, 1e-3, 0.05, 0.5, 1.0, 3.0])
def test_one_device_waits_for_nobody(cv: float) -> None:
    assert slowest_of(1, cv).mean == pytest.approx(1, abs=1e-3)
    assert slowest_of(1, cv).sd == pytest.approx(cv, rel=1e-3, abs=1e-9)


@pytest.mark.parametrize("cv", [0.02, 0.3, 1.5])
def test_gamma_times_agree_with_draws(cv: float) -> None:
    times = np.random.default_rng(1).gamma(1 / cv**2, cv**2, (40_000, 8))
    draws = times.max(axis=1)
    slowest = slowest_of(8, cv)
    assert slowest.mean == pytest.approx(draws.mean(), rel=0.02)
    assert slowest.sd == pytest.approx(draws.std(), rel=0.05)
    assert slowest.fastest == pytest.approx(times.min(axis=1).mean(), rel=0.03, abs=1e-3)


def test_small_jitter_is_near_normal() -> None:
    expected_largest_of_two_normals = 1 / np.sqrt(np.pi)
    for cv in (1e-5, 1e-3, 0.01):
        excess = (slowest_of(2, cv).mean - 1) / cv
        assert excess == pytest.approx(expected_largest_of_two_normals, rel=0.01)


def test_more_devices_and_more_jitter_never_shorten_the_wait() -> None:
    means = [[slowest_of(k, cv).mean for k in (1, 2, 3, 8, 64)] for cv in (0, 0.01, 0.2, 1, 2)]
    assert np.all(np.diff(means, axis=0) >= -1e-4)
    assert np.all(np.diff(means, axis=1) >= -1e-4)


def test_measured_times_replace_the_gamma() -> None:
    stalls = (1.0,) * 19 + (8.0,)
    mean = 1.35
    for k in (1, 2, 32):
        stalled = 1 - 0.95**k
        slowest = slowest_of(k, 0.3, stalls)
        assert slowest.mean * mean == pytest.approx(1 + 7 * stalled)
        assert slowest.fastest * mean == pytest.approx(1 + 7 * 0.05**k)
        assert slowest.sd * mean == pytest.approx(7 * np.sqrt(stalled * (1 - stalled)))
