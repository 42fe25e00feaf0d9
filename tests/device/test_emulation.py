"""The made-up clock has the mean and the spread it is asked for."""

from __future__ import annotations

import math

import numpy as np
import pytest

from omnivore_ray.device.emulation import Emulation


@pytest.mark.parametrize("jitter", [0.05, 0.5, 1.0])
def test_mean_and_spread_are_those_asked_for(jitter):
    emulation = Emulation(samples_per_s=50.0, jitter=jitter, latency_s=0.25)
    random = np.random.default_rng(0)
    count = 20_000
    compute_s = np.array([emulation.compute_s(10, random) for _ in range(count)]) - 0.25
    assert compute_s.min() >= 0
    assert compute_s.mean() == pytest.approx(0.2, abs=5 * 0.2 * jitter / math.sqrt(count))
    assert compute_s.std() / compute_s.mean() == pytest.approx(jitter, rel=0.05)


def test_without_jitter_time_is_computation_latency_and_transfer():
    emulation = Emulation(samples_per_s=50.0, latency_s=0.25, bytes_per_s=1000.0)
    assert emulation.compute_s(10, np.random.default_rng(0)) == 0.2 + 0.25
    assert emulation.transfer_s(500) == 0.5
    assert Emulation(samples_per_s=50.0).transfer_s(10**12) == 0.0
    with pytest.raises(ValueError, match="shared_link=True: give bytes_per_s"):
        Emulation(samples_per_s=50.0, shared_link=True)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("samples_per_s", 0.0), ("samples_per_s", math.inf), ("samples_per_s", "50"),
        ("samples_per_s", True), ("jitter", -0.1), ("jitter", math.nan), ("latency_s", -1.0),
        ("bytes_per_s", 0.0), ("bytes_per_s", math.inf),
    ],
)  # fmt: skip
def test_an_impossible_device_is_refused_by_argument_and_value(field, value):
    with pytest.raises(ValueError, match=f"Emulation.{field}="):
        Emulation(**{"samples_per_s": 50.0, field: value})
