"""Gradients on the virtual clock: against a plain loop, against the timing run, through faults."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from omnivore_ray.data.datasets import as_split
from omnivore_ray.data.sampler import Sampler
from omnivore_ray.simulate.clock import timing_run
from omnivore_ray.simulate.cluster import Head, Network, Server, VirtualCluster, VirtualDevice
from omnivore_ray.simulate.fleet import VirtualFleet
from omnivore_ray.simulate.service_times import Factors, ServiceTimes
from omnivore_ray.strategy import Request, Strategy
from omnivore_ray.workload import Target


def request(groups=1, updates=30, learning_rate=0.1, momentum=0.5, **fields):
    strategy = Strategy(groups=groups, learning_rate=learning_rate, momentum=momentum)
    return Request(**{"kind": "train", "strategy": strategy, "budget_updates": updates, **fields})


def tensors(fleet):
    return {name: value.clone() for name, value in fleet.parameters.state_dict().items()}


def plain_loop(workload, updates, learning_rate=0.1, momentum=0.5, seed=0):
    torch.manual_seed(seed)
    model = workload.model()
    sgd = torch.optim.SGD(model.parameters(), lr=learning_rate, momentum=momentum)
    train = as_split(workload.data).train
    sampler = Sampler(train.order, len(train), workload.batch_size, seed)
    losses = []
    for batch in range(updates):
        inputs, targets = train.take(sampler.rows(batch, 0, sampler.size(batch)))
        loss = workload.loss(model(inputs), targets)
        sgd.zero_grad()
        loss.backward()
        sgd.step()
        losses.append(loss.item())
    return model.state_dict(), losses


@pytest.mark.parametrize("members", [1, 4])
def test_one_group_equals_the_plain_loop(regression, members):
    workload = regression()
    fleet = VirtualFleet(workload, VirtualCluster.uniform(members, 10.0))
    outcome, session = fleet.run(request(), "a")
    expected, losses = plain_loop(workload, 30)
    assert outcome.updates == 30
    for name, value in tensors(fleet).items():
        torch.testing.assert_close(value, expected[name], rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(session.history.columns["loss"], losses, rtol=1e-12)


def test_a_model_with_buffers_is_computed_share_by_share(regression):
    """BatchNorm normalises each share by itself, and every share counts in its statistics."""

    def normalised():
        return nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)).double()

    workload = regression(model=normalised)
    whole = VirtualFleet(workload, VirtualCluster.uniform(1, 10.0))
    whole.run(request(updates=1), "a")
    shared = VirtualFleet(workload, VirtualCluster.uniform(2, 10.0))
    shared.run(request(updates=1), "a")
    mean = "1.running_mean"
    torch.testing.assert_close(tensors(whole)[mean], tensors(shared)[mean])
    assert not torch.equal(tensors(whole)["0.weight"], tensors(shared)["0.weight"])


@pytest.mark.parametrize("groups", [1, 2, 3, 6])
def test_gradients_do_not_change_the_clock(regression, groups):
    cluster = VirtualCluster.uniform(
        6,
        100.0,
        service_times=ServiceTimes("exponential"),
        network=Network(bytes_per_s=1e5, alpha_s=0.002),
        server=Server(update_s=0.01),
    )
    workload = regression()
    fleet = VirtualFleet(workload, cluster, seed=5, target=Target("updates", at_least=100))
    _, session = fleet.run(request(groups, updates=None, learning_rate=1e-3), "a")
    timing = timing_run(
        cluster,
        groups=groups,
        batch_samples=lambda batch: 32 if batch % 4 < 3 else 4,
        copy_bytes=fleet.parameters.layout.nbytes,
        seed=5,
        most_updates=100,
    )
    for name, values in timing.items():
        assert session.history.columns[name] == pytest.approx(values), name


def test_a_served_head_is_refused_until_it_can_be_split(regression):
    cluster = VirtualCluster.uniform(2, 1.0, head=Head(batch_s=0.1))
    with pytest.raises(ValueError, match="head=None"):
        VirtualFleet(regression(), cluster)


def test_a_gradient_is_computed_at_the_version_it_was_leased_at(regression):
    workload = regression(rows=96)  # no short batch: both groups always end at the same time
    fleet = VirtualFleet(workload, VirtualCluster.uniform(2, 10.0))
    _, session = fleet.run(request(2, updates=4, momentum=0.0), "a")
    assert session.history.columns["version_read"] == [0, 0, 1, 2]
    torch.manual_seed(0)
    model = workload.model()
    train = as_split(workload.data).train
    sampler = Sampler(train.order, len(train), workload.batch_size, 0)
    states = [{n: p.detach().clone() for n, p in model.named_parameters()}]
    # the last device to ask starts the clock, so it has batch 0
    for batch, version in zip((1, 0, 2, 3), (0, 0, 1, 2), strict=True):
        inputs, targets = train.take(sampler.rows(batch, 0, 32))
        model.load_state_dict(states[version])
        model.zero_grad()
        workload.loss(model(inputs), targets).backward()
        states.append({n: states[-1][n] - 0.1 * p.grad for n, p in model.named_parameters()})
    for name, value in tensors(fleet).items():
        torch.testing.assert_close(value, states[-1][name], rtol=1e-12, atol=1e-12)


def test_groups_that_read_one_version_share_its_copy(regression):
    fleet = VirtualFleet(regression(), VirtualCluster.uniform(64, 10.0))
    seen = []
    fleet._watch = lambda session, _: seen.append(
        (len(session._published), len(session._ledger.versions_read()))
    )
    fleet.run(request(64, updates=20), "a")
    assert all(copies <= versions + 1 for copies, versions in seen)
    assert seen[0][0] <= 2  # 64 groups, and all but one still compute at version 0


def test_requests_resume_from_a_name(regression):
    fleet = VirtualFleet(regression(), VirtualCluster.uniform(2, 10.0))
    fleet.run(request(updates=10), "a")
    after_ten = tensors(fleet)
    first, _ = fleet.run(request(updates=10, resume_from="a"), "b")
    twenty = tensors(fleet)
    fleet.run(request(updates=5), "c")
    fleet.run(request(updates=10, resume_from="a"), "d")
    for name, value in tensors(fleet).items():
        assert torch.equal(value, twenty[name])
        assert not torch.equal(value, after_ten[name])
    assert fleet.state.version == 20
    whole = VirtualFleet(regression(), VirtualCluster.uniform(2, 10.0))
    whole.run(request(updates=20), "a")
    for name, value in tensors(whole).items():
        torch.testing.assert_close(value, twenty[name], rtol=1e-12, atol=1e-12)
    assert first.updates == 10


def test_the_clock_goes_on_from_request_to_request(regression):
    fleet = VirtualFleet(regression(), VirtualCluster.uniform(1, 32.0))
    fleet.run(request(updates=3), "a")
    assert fleet.now_s == pytest.approx(3.0)
    _, session = fleet.run(request(updates=2), "b")
    assert session.history.columns["time_s"] == pytest.approx([4.0, 5.0])


def test_old_states_are_forgotten_after_a_stretch(regression):
    fleet = VirtualFleet(regression(), VirtualCluster.uniform(1, 32.0))
    for number in range(5):
        fleet.run(request(updates=1, kind="probe"), f"probe-{number}")
    assert fleet.kept("probe-0").state.version == 1
    for number in range(5):
        fleet.run(request(updates=1), f"train-{number}")
    assert set(fleet._kept) == {"train-2", "train-3", "train-4"}
    fleet.run(request(updates=1, resume_from="train-2"), "train-5")
    assert set(fleet._kept) == {"train-2", "train-4", "train-5"}  # those used last


def test_divergence_is_an_outcome(regression):
    fleet = VirtualFleet(regression(), VirtualCluster.uniform(2, 10.0))
    outcome, _ = fleet.run(request(2, updates=500, learning_rate=1e6), "a")
    assert outcome.status == "diverged"
    assert outcome.checkpoint_path is None


@pytest.mark.parametrize("groups", [1, 2, 4])
def test_a_lost_device_loses_no_rows(regression, groups):
    """Every row once an epoch, whoever is lost: its group goes on, or others take its batch."""
    devices = [
        VirtualDevice(samples_per_s=64.0, fails_at_s=0.3 if n == 1 else None) for n in range(4)
    ]
    fleet = VirtualFleet(regression(), VirtualCluster(devices=devices))
    outcome, _ = fleet.run(request(groups, updates=40), "a")
    assert outcome.status == "completed"
    assert "virtual device 1 failed at 0.3 s" in outcome.reason
    done = fleet.state.next_batch - len(fleet.state.owed)
    assert done == fleet.state.version == 40
    intact = VirtualFleet(regression(), VirtualCluster.uniform(4, 64.0))
    assert outcome.seconds > intact.run(request(groups, updates=40), "a")[0].seconds


def test_rows_of_a_lost_device_are_taken_over_at_once(regression):
    """Device 0 is done after 1 s and its exchange after 1.2 s; device 1 fails at 1.3 s."""
    times = ServiceTimes("exponential")
    seed = next(s for s in range(9999) if 2.15 < Factors([times] * 2, s).next(1) < 2.25)
    devices = [
        VirtualDevice(samples_per_s=16.0),
        VirtualDevice(samples_per_s=16.0, service_times=times, fails_at_s=1.3),
    ]
    network = Network(bytes_per_s=1e12, alpha_s=0.1)
    fleet = VirtualFleet(regression(), VirtualCluster(devices=devices, network=network), seed=seed)
    _, session = fleet.run(request(updates=1), "a")
    assert session.history.columns["time_s"] == pytest.approx([1.3 + 1.0 + 0.2])


def test_a_device_lost_in_one_request_is_lost_in_the_next(regression):
    devices = [VirtualDevice(samples_per_s=32.0, fails_at_s=1.5), VirtualDevice(samples_per_s=32.0)]
    fleet = VirtualFleet(regression(), VirtualCluster(devices=devices))
    fleet.run(request(2, updates=6), "a")
    _, session = fleet.run(request(2, updates=3), "b")
    assert set(session.history.columns["group"]) == {1}


def test_without_devices_a_request_fails(regression):
    device = VirtualDevice(samples_per_s=32.0, fails_at_s=2.5)
    fleet = VirtualFleet(regression(), VirtualCluster(devices=[device]))
    outcome, _ = fleet.run(request(updates=9), "a")
    assert outcome.status == "failed"
    assert outcome.updates == 2


def test_a_stalled_device_is_overdue_and_its_rows_go_to_others(regression):
    """One device takes a thousand times as long as it usually does."""
    slow = ServiceTimes("stalls", stall_share=0.02, stall_factor=1000.0)
    devices = [VirtualDevice(samples_per_s=64.0 / 21, service_times=slow)]
    devices += [VirtualDevice(samples_per_s=64.0 / 21)] * 3
    fleet = VirtualFleet(regression(), VirtualCluster(devices=devices))
    outcome, _ = fleet.run(request(updates=80), "a")
    assert outcome.status == "completed"
    assert "device 0 was overdue" in outcome.reason


def test_a_validation_takes_virtual_time(regression, accuracy):
    workload = regression(metrics=accuracy)
    fleet = VirtualFleet(workload, VirtualCluster.uniform(1, 32.0), evaluate_every_s=1e9)
    outcome, _ = fleet.run(request(updates=3), "a")
    assert outcome.metrics["accuracy"] > 0
    assert fleet.now_s == pytest.approx(3 + 40 / 32)


def test_a_target_on_a_validation_metric_ends_the_run(regression, accuracy):
    workload = regression(metrics=accuracy)
    target = Target("accuracy", at_least=0.9)
    fleet = VirtualFleet(workload, VirtualCluster.uniform(4, 200.0), target=target)
    outcome, _ = fleet.run(request(2, updates=None), "a")
    assert outcome.status == "target_reached"
    assert outcome.metrics["accuracy"] >= 0.9


def test_a_time_limit_ends_the_run_within_half_a_second(regression):
    fleet = VirtualFleet(regression(), VirtualCluster.uniform(2, 3.2), time_limit_s=21.0)
    outcome, _ = fleet.run(request(updates=None), "a")
    assert outcome.status == "out_of_time"
    assert 21.0 <= fleet.now_s <= 21.5
    assert outcome.updates == 5  # three of 5 s, a short one, another


def test_who_waits_takes_the_last_validation(regression, accuracy):
    """Two of three wait for a slow third when time is up: they validate while it still computes."""
    times = ServiceTimes("exponential")

    def first_two(seed):
        factors = Factors([times] * 3, seed)
        return factors.next(2), factors.next(2)

    seed = next(s for s in range(9999) if first_two(s)[0] > 3 and first_two(s)[1] > 0.5)
    slow, then = first_two(seed)
    devices = [VirtualDevice(samples_per_s=10.0)] * 2
    devices += [VirtualDevice(samples_per_s=10.0, service_times=times)]
    fleet = VirtualFleet(
        regression(metrics=accuracy, batch_size=30),
        VirtualCluster(devices=devices),
        seed=seed,
        time_limit_s=1.1,
        evaluate_every_s=1e9,
    )
    outcome, _ = fleet.run(request(updates=None), "a")
    assert outcome.status == "out_of_time"
    assert fleet.now_s == pytest.approx(slow + 13 / 10 * then)


def test_the_users_own_exception_arrives_whole(regression):
    def broken(outputs, targets):
        raise KeyError("mine")

    fleet = VirtualFleet(replace(regression(), loss=broken), VirtualCluster.uniform(2, 10.0))
    with pytest.raises(RuntimeError, match="mine") as caught:
        fleet.run(request(), "a")
    assert isinstance(caught.value.__cause__, KeyError)
    assert math.isfinite(fleet.now_s)
