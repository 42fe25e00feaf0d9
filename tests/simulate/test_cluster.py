import numpy as np
import pytest

from omnivore_ray.simulate.cluster import Head, Network, Server, VirtualCluster, VirtualDevice
from omnivore_ray.simulate.presets import PRESETS, preset
from omnivore_ray.simulate.service_times import Factors, ServiceTimes
from omnivore_ray.strategy import Strategy

DISTRIBUTIONS = [
    ServiceTimes(),
    ServiceTimes("jittered", cv=0.2),
    ServiceTimes("exponential"),
    ServiceTimes("lognormal", cv=0.5),
    ServiceTimes("stalls", stall_share=0.05, stall_factor=8.0),
]
SDS = [0.0, 0.2, 1.0, 0.5, 7 * np.sqrt(0.05 * 0.95) / 1.35]


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: VirtualDevice(samples_per_s=0), r"samples_per_s=0\b.*above 0"),
        (lambda: VirtualDevice(samples_per_s=-3.0), "samples_per_s=-3.0"),
        (lambda: VirtualDevice(samples_per_s=float("nan")), "samples_per_s=nan"),
        (lambda: VirtualDevice(samples_per_s=True), "samples_per_s=True"),
        (lambda: VirtualDevice(samples_per_s=1, fails_at_s=-1.0), "fails_at_s=-1.0"),
        (lambda: VirtualDevice(samples_per_s=1, service_times="exponential"), "ServiceTimes"),
        (lambda: ServiceTimes("gaussian"), "'gaussian': give one of constant, jittered"),
        (lambda: ServiceTimes("jittered", cv=0.0), "cv=0.0"),
        (lambda: ServiceTimes("stalls", stall_share=1.0), "stall_share=1.0"),
        (lambda: ServiceTimes("stalls", stall_factor=1.0), "stall_factor=1.0"),
        (lambda: Network(bytes_per_s=0.0), "bytes_per_s=0.0"),
        (lambda: Network(bytes_per_s=1e9, alpha_s=-1e-3), "alpha_s=-0.001"),
        (lambda: Network(bytes_per_s=1e9, copy_bytes=-1), "copy_bytes=-1"),
        (lambda: Server(update_s=-0.1), "update_s=-0.1"),
        (lambda: Head(batch_s=float("inf")), "batch_s=inf"),
        (lambda: VirtualCluster(devices=[]), "devices="),
        (lambda: VirtualCluster(devices=[8.0]), "VirtualDevice"),
        (lambda: VirtualCluster.uniform(0, 1.0), "num_devices=0"),
        (lambda: VirtualCluster.uniform(2, 1.0, head=0.5), "head=0.5"),
        (lambda: VirtualCluster.uniform(2, 1.0, network=1e9), "network="),
        (lambda: VirtualCluster.uniform(2, 1.0, server=None), "server=None"),
        (lambda: preset("paper-tpu-9", batch_size=64), "'paper-tpu-9': unknown; there are paper"),
    ],
)
def test_bad_input_is_refused_by_name(make, words):
    with pytest.raises(ValueError, match=words):
        make()


def test_a_strategy_must_fit_the_cluster():
    cluster = VirtualCluster.uniform(4, 1.0)
    cluster.check(Strategy(groups=4, learning_rate=0.1), batch_size=1)
    with pytest.raises(ValueError, match=r"groups=5 but there are 4 devices"):
        cluster.check(Strategy(groups=5, learning_rate=0.1), batch_size=64)
    with pytest.raises(ValueError, match=r"batch_size=3 is below the 4 devices"):
        cluster.check(Strategy(groups=1, learning_rate=0.1), batch_size=3)


@pytest.mark.parametrize(("times", "sd"), list(zip(DISTRIBUTIONS, SDS, strict=True)))
def test_factors_have_mean_1_and_the_spread_they_say(times, sd):
    factors = times.factors(np.random.default_rng(0), 200_000)
    assert factors.min() > 0
    assert factors.mean() == pytest.approx(1, abs=0.01)
    assert factors.std() == pytest.approx(sd, rel=0.05, abs=1e-12)


def test_stalls_are_as_rare_and_as_long_as_they_say():
    factors = ServiceTimes("stalls", stall_share=0.1, stall_factor=4.0).factors(
        np.random.default_rng(0), 100_000
    )
    short, long = np.unique(factors)
    assert long / short == pytest.approx(4.0)
    assert (factors == long).mean() == pytest.approx(0.1, abs=0.005)


def test_a_devices_factors_do_not_depend_on_what_others_draw():
    times = [ServiceTimes("exponential")] * 2
    alone, mixed, other = Factors(times, 3), Factors(times, 3), Factors(times, 4)
    expected = [alone.next(1) for _ in range(200)]
    found = []
    for _ in range(200):
        mixed.next(0)
        found.append(mixed.next(1))
    assert found == expected
    assert len(set(expected)) == 200  # a second block of draws is not the first again
    assert [other.next(1) for _ in range(200)] != expected
    assert [alone.next(0) for _ in range(200)] != expected


def test_a_transfer_takes_latency_and_bytes_over_rate():
    network = Network(bytes_per_s=100.0, alpha_s=0.5)
    assert network.transfer_s(200) == pytest.approx(2.5)
    assert Network(bytes_per_s=100.0, copy_bytes=50).transfer_s(200) == pytest.approx(0.5)
    assert VirtualCluster.uniform(1, 1.0).transfer_s(200) == 0.0


@pytest.mark.parametrize("name", PRESETS)
@pytest.mark.parametrize("batch_size", [64, 256])
def test_a_presets_clock_is_the_same_for_any_batch_size(name, batch_size):
    cluster = preset(name, batch_size=batch_size)
    published = {  # PAPER.md section 3, and the arithmetic of the docstring by hand
        "paper-gpu-9": (8, 0.260, 0.0149, 0.0229),
        "paper-cpu-9": (8, 3.443, 0.1494, 0.303),
        "paper-cpu-33": (32, 3.443, 0.1494, 0.303),
        "1gbit-32": (32, 3.5, 0.15, 0.45),
        "10gbit-32": (32, 3.5, 0.015, 0.22),
        "exponential-32": (32, 3.2, 0.002, 0.02),
        "stalls-32": (32, 4.32, 0.002, 0.02),
    }
    num_devices, compute_s, copy_s, head_s = published[name]
    assert len(cluster.devices) == num_devices
    assert batch_size / cluster.speeds[0] == pytest.approx(compute_s, rel=0.01)
    assert 2 * cluster.transfer_s(1e99) == pytest.approx(copy_s, rel=0.01)
    assert cluster.head.batch_s == pytest.approx(head_s, rel=0.01)


def test_without_a_head_server_devices_compute_the_head_too():
    cluster = preset("1gbit-32", batch_size=64, head_served=False)
    assert cluster.head is None
    assert 64 / cluster.speeds[0] == pytest.approx(3.5 + 0.45)


def test_a_cluster_says_that_it_is_virtual():
    text = str(preset("1gbit-32", batch_size=64))
    assert "32 virtual devices" in text
    assert "head server of 0.45 s" in text
