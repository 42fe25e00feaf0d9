"""The clock against the hardware model, and staleness against queueing theory."""

import numpy as np
import pytest

from omnivore_ray.efficiency.hardware import HardwareModel
from omnivore_ray.simulate.clock import Pipeline, timing_run
from omnivore_ray.simulate.cluster import Head, Network, Server, VirtualCluster, VirtualDevice
from omnivore_ray.simulate.presets import PRESETS, preset
from omnivore_ray.simulate.service_times import ServiceTimes

BATCH = 256


def run(cluster, groups, updates, batch=BATCH, **options):
    columns = timing_run(
        cluster,
        groups=groups,
        batch_samples=lambda _: batch,
        copy_bytes=0,
        most_updates=updates,
        **options,
    )
    return {name: np.array(values) for name, values in columns.items()}


def seconds_per_update(cluster, groups, updates=3000):
    times = run(cluster, groups, updates)["time_s"]
    settled = updates // 10
    return (times[-1] - times[settled]) / (updates - 1 - settled)


def model_of(cluster):
    times = cluster.devices[0].service_times
    stalls = times.distribution == "stalls"
    return HardwareModel(
        num_devices=len(cluster.devices),
        t_compute=BATCH / cluster.speeds[0],
        t_link=2 * cluster.transfer_s(0),
        t_head=cluster.head_batch_s,
        t_server=cluster.server.update_s,
        cv={"jittered": times.cv, "exponential": 1.0}.get(times.distribution, 0.0),
        service_times=(1.0,) * 19 + (8.0,) if stalls else (),
        sends_when_ready=True,
    )


@pytest.mark.parametrize("name", PRESETS)
def test_presets_take_the_seconds_that_the_hardware_model_says(name):
    cluster = preset(name, batch_size=BATCH)
    groups = [g for g in (1, 2, 4, 8, 16, 32) if g <= len(cluster.devices)]
    found = [seconds_per_update(cluster, g) for g in groups]
    steady = cluster.devices[0].service_times.distribution == "jittered"
    np.testing.assert_allclose(
        found, model_of(cluster).seconds_per_update(groups), rtol=0.01 if steady else 0.07
    )


def test_presets_take_the_seconds_of_papers_events():
    groups = (1, 2, 4, 8, 16, 32)
    for name, published in (  # PAPER.md section 3
        ("1gbit-32", (5.37, 2.40, 1.20, 0.60, 0.45, 0.45)),
        ("10gbit-32", (0.82, 0.35, 0.22, 0.22, 0.22, 0.22)),
    ):
        found = [seconds_per_update(preset(name, batch_size=BATCH), g, 600) for g in groups]
        np.testing.assert_allclose(found, published, rtol=0.06)


def test_constant_times_are_exact():
    cluster = VirtualCluster.uniform(
        4,
        8.0,
        network=Network(bytes_per_s=1.0, alpha_s=0.05, copy_bytes=0),
        head=Head(batch_s=0.3),
        server=Server(update_s=0.2),
    )
    columns = run(cluster, 1, 3, batch=64)
    cycle_s = 64 / 4 / 8 + 4 * 0.1 + 0.3 + 0.2
    np.testing.assert_allclose(columns["time_s"], cycle_s * np.arange(1, 4))
    np.testing.assert_allclose(columns["compute_s"], 2.0)


def test_unequal_devices_finish_together():
    devices = [VirtualDevice(samples_per_s=rate) for rate in (1.0, 2.0, 5.0)]
    columns = run(VirtualCluster(devices=devices), 1, 2, batch=64)
    np.testing.assert_allclose(columns["time_s"], [8.0, 16.0])


def test_link_and_servers_serve_one_visit_at_a_time():
    parts = {"head": Head(batch_s=2.0), "server": Server(update_s=3.0)}
    pipeline = Pipeline(VirtualCluster.uniform(1, 1.0, **parts))
    assert [pipeline.through_link(t, 1.0) for t in (0.0, 0.5, 5.0)] == [1.0, 2.0, 6.0]
    assert [pipeline.through_servers(t) for t in (1.0, 2.0, 3.5)] == [6.0, 9.0, 12.0]


@pytest.mark.parametrize("groups", [2, 4, 8])
def test_exponential_group_times_make_staleness_geometric(groups):
    """PAPER.md section 4: q_0 = 1/g, mean g - 1, variance g (g - 1)."""
    cluster = VirtualCluster.uniform(groups, 100.0, service_times=ServiceTimes("exponential"))
    columns = run(cluster, groups, 40_000)
    staleness = (columns["version"] - 1 - columns["version_read"])[100:]
    for s in range(4):
        expected = (1 / groups) * (1 - 1 / groups) ** s
        assert (staleness == s).mean() == pytest.approx(expected, abs=0.01)
    assert staleness.mean() == pytest.approx(groups - 1, rel=0.02)
    assert staleness.var() == pytest.approx(groups * (groups - 1), rel=0.06)


@pytest.mark.parametrize("groups", [2, 8])
def test_nearly_equal_times_make_staleness_constant(groups):
    cluster = VirtualCluster.uniform(groups, 100.0, service_times=ServiceTimes("jittered", cv=1e-3))
    columns = run(cluster, groups, 2000)
    staleness = (columns["version"] - 1 - columns["version_read"])[2 * groups :]
    assert staleness.mean() == pytest.approx(groups - 1, abs=0.05)
    assert staleness.var() < 0.02 * groups * (groups - 1)  # of the geometric


def test_limits_end_a_run():
    cluster = VirtualCluster.uniform(2, 64.0)
    assert len(run(cluster, 1, 7, batch=64)["version"]) == 7
    assert sum(run(cluster, 1, 99, batch=64, most_samples=129)["samples"]) == 192
    assert run(cluster, 1, 99, batch=64, most_s=2.2)["time_s"].tolist() == [0.5, 1.0, 1.5, 2.0]
    assert run(cluster, 1, 99, batch=64, most_s=0.1)["time_s"].tolist() == []
    with pytest.raises(ValueError, match="at least one limit"):
        timing_run(cluster, groups=1, batch_samples=lambda _: 64, copy_bytes=0)


def test_seeds_repeat_and_differ():
    cluster = preset("exponential-32", batch_size=BATCH)
    times = [run(cluster, 8, 50, seed=seed)["time_s"].tolist() for seed in (1, 1, 2)]
    assert times[0] == times[1] != times[2]
