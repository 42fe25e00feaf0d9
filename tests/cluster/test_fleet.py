"""The real fleet on Ray: what the in-process oracles cannot show."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import ray
import torch
import torch.nn.functional as F
from torch import nn

from omnivore_ray import Device, Emulation, OmnivoreError, Strategy, Target, Workload
from omnivore_ray.cluster.fleet import Fleet, FleetSpec
from omnivore_ray.data.sampler import Sampler
from omnivore_ray.strategy import Request
from omnivore_ray.update.checkpoint import read_history, read_state

pytestmark = pytest.mark.usefixtures("ray_session")

FAST = Emulation(samples_per_s=64 / 0.004, jitter=1.0)


class Constant(nn.Module):
    """Its gradient is exactly 1 in every entry; it refuses to compute on a torn read."""

    def __init__(self, entries: int = 4) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(entries))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        if not bool((self.weight == self.weight[0]).all()):
            raise RuntimeError("torn read")
        return self.weight.sum().expand(len(inputs))


def mean_output(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return outputs.mean()


def constant(entries: int = 4) -> Workload:
    rows = np.zeros((1000, 1), dtype=np.float32)
    return Workload(
        model=lambda: Constant(entries), data=(rows, rows), loss=mean_output, batch_size=64
    )


@contextmanager
def running(workload: Workload, devices: list[Device], **options) -> Iterator[Fleet]:
    fleet = Fleet(FleetSpec.of(workload, devices, **options))
    try:
        yield fleet
    finally:
        fleet.close()


def request(groups: int = 1, lr: float = 0.05, momentum: float = 0.0, **fields) -> Request:
    strategy = Strategy(groups=groups, learning_rate=lr, momentum=momentum)
    return Request(kind=fields.pop("kind", "train"), strategy=strategy, **fields)


@pytest.fixture(scope="module")
def four_devices(ray_session) -> Iterator[Fleet]:
    """Four emulated devices with random delays, on a model of 2 MB."""
    devices = [Device(emulate=FAST) for _ in range(4)]
    with running(constant(entries=500_000), devices) as fleet:
        yield fleet


def test_asynchronous_updates_are_exact_and_no_read_is_torn(four_devices, tmp_path):
    outcome = four_devices.run(
        request(groups=4, lr=2.0**-10, budget_updates=1000), checkpoint=tmp_path / "end"
    )
    assert outcome.status == "completed", outcome.reason
    history = read_history(tmp_path / "end").columns
    assert history["version"] == list(range(1, 1001))
    assert np.mean(history["staleness"]) == pytest.approx(3, abs=0.3)
    assert set(history["group"]) == {0, 1, 2, 3}
    weight = _tensors(tmp_path / "end")["weight"]
    assert torch.equal(weight, torch.full_like(weight, -1000 * 2.0**-10))


def test_strategy_and_velocity_change_hands_between_requests(four_devices, tmp_path):
    """From a checkpoint: velocity 1 after one update, so a second one moves by 0.5 * 1 + 1."""
    first = four_devices.run(
        request(lr=2.0**-4, momentum=0.5, budget_updates=1), checkpoint=tmp_path / "first"
    )
    four_devices.run(request(groups=2, budget_updates=3), checkpoint=tmp_path / "other")
    four_devices.run(
        request(lr=2.0**-3, momentum=0.5, budget_updates=1, resume_from=first.checkpoint_path),
        checkpoint=tmp_path / "second",
    )
    weight = _tensors(tmp_path / "second")["weight"]
    assert torch.equal(weight, torch.full_like(weight, -(2.0**-4) - 2.0**-3 * 1.5))
    history = read_history(tmp_path / "second").columns
    assert history["version"] == [2]
    assert history["learning_rate"] == [2.0**-3]
    state, _ = read_state(tmp_path / "second")
    assert state.next_batch == 2


def test_a_killed_worker_costs_no_update(four_devices):
    """Its group of two goes on without it, and so do later requests."""
    four_devices.start(request(groups=2, lr=2.0**-10, budget_updates=300))
    assert not four_devices.poll(0.3).ended
    ray.kill(four_devices._workers[1])
    while not four_devices.poll(1.0).ended:
        pass
    outcome = four_devices.finish()
    assert (outcome.status, outcome.updates) == ("completed", 300)
    assert "emulated-1 was lost" in outcome.reason
    again = four_devices.run(request(groups=4, budget_updates=20))
    assert (again.status, again.updates) == ("completed", 20)


def test_unequal_members_compute_what_one_device_would(tmp_path):
    """float64, momentum and weight decay, k = 2 with shares 1:3, against a plain loop."""
    torch.manual_seed(3)
    module = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 2)).double()
    oracle = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 2)).double()
    oracle.load_state_dict(module.state_dict())
    rng = np.random.default_rng(0)
    inputs, targets = rng.standard_normal((100, 6)), rng.standard_normal((100, 2))
    workload = Workload(
        model=lambda: module,
        data=(inputs, targets),
        loss=F.mse_loss,
        optimizer={"weight_decay": 0.1},
        batch_size=32,
    )
    with running(workload, [Device(speed=1.0), Device(speed=3.0)], seed=5) as fleet:
        fleet.run(request(momentum=0.6, budget_updates=50), checkpoint=tmp_path / "end")
    sgd = torch.optim.SGD(oracle.parameters(), lr=0.05, momentum=0.6, weight_decay=0.1)
    source = fleet.spec
    order = Sampler(ray.get(source.train).order, 100, 32, seed=5)
    for batch in range(50):
        rows = order.rows(batch, 0, order.size(batch))
        sgd.zero_grad()
        F.mse_loss(oracle(torch.as_tensor(inputs[rows])), torch.as_tensor(targets[rows])).backward()
        sgd.step()
    ours = _tensors(tmp_path / "end")
    for name, value in oracle.state_dict().items():
        torch.testing.assert_close(ours[name], value, rtol=0, atol=1e-12)


class UserError(Exception):
    pass


class Failing(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(2))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        raise UserError("seven is not a colour")


def test_the_users_exception_arrives_whole(tmp_path):
    workload = replace(constant(), model=Failing)
    with running(workload, [Device(emulate=FAST)]) as fleet:
        fleet.start(request(budget_updates=5))
        with pytest.raises(OmnivoreError, match=r"emulated-0 with rows \d+, .*64 rows") as caught:
            for _ in range(30):
                fleet.poll(1.0)
    assert "in forward" in str(caught.value)
    assert isinstance(caught.value.__cause__, UserError)


def test_a_model_that_cannot_be_sent_is_named():
    import threading

    class Locked(Constant):
        def __init__(self) -> None:
            super().__init__()
            self.guard = threading.Lock()

    workload = replace(constant(), model=Locked)
    with pytest.raises(ValueError, match=r"Workload.model\(\).guard is a lock"):
        Fleet(FleetSpec.of(workload, [Device(emulate=FAST)]))


def test_a_lost_server_is_an_error_not_a_hang():
    with running(constant(), [Device(emulate=FAST)]) as fleet:
        fleet.start(request())
        fleet.poll(0.2)
        ray.kill(fleet._server)
        with pytest.raises(OmnivoreError, match="parameter server was lost"):
            for _ in range(30):
                fleet.poll(1.0)


def test_more_groups_than_devices_and_too_small_a_batch_are_refused():
    spec = FleetSpec.of(replace(constant(), batch_size=1), [Device(emulate=FAST)] * 2)
    with pytest.raises(ValueError, match="groups=3 but there are 2 devices"):
        spec.check(Strategy(groups=3, learning_rate=0.1))
    with pytest.raises(ValueError, match="batch_size=1 is below the 2 devices"):
        spec.check(Strategy(groups=1, learning_rate=0.1))
    spec.check(Strategy(groups=2, learning_rate=0.1))


class Named(Constant):
    """Takes its inputs by name, as dict batches give them."""

    def forward(self, pixels: torch.Tensor, word: list[str]) -> torch.Tensor:
        assert len(word) == len(pixels) and pixels.shape[1:] == (2,)
        return super().forward(pixels)


def test_parquet_with_dict_batches_trains_to_an_exact_target(tmp_path):
    table = pa.table(
        {
            "pixels": pa.array([[float(i), 1.0] for i in range(1000)], pa.list_(pa.float32(), 2)),
            "word": [str(i) for i in range(1000)],
            "label": np.zeros(1000, dtype=np.float32),
        }
    )
    pq.write_table(table, tmp_path / "rows.parquet", row_group_size=100)
    workload = replace(constant(), model=Named, data=str(tmp_path / "rows.parquet"), target="label")
    target = Target("samples", at_least=1640)
    with running(workload, [Device(emulate=FAST)] * 2, target=target) as fleet:
        outcome = fleet.run(request(groups=2), checkpoint=tmp_path / "end")
    # 15 batches of 64 and one of 40 to an epoch
    assert (outcome.status, outcome.updates) == ("target_reached", 26)
    assert outcome.samples == 1640
    assert sorted(read_history(tmp_path / "end").columns["samples"])[0] == 40


def _tensors(path: Path) -> dict[str, torch.Tensor]:
    import safetensors.torch

    return safetensors.torch.load_file(path / "model.safetensors")
