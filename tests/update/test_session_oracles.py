"""A session must compute what a plain PyTorch loop computes, however the work is shared."""

from __future__ import annotations

import copy
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from omnivore_ray.data.sampler import Sampler
from omnivore_ray.data.sources import as_source


def net(dtype: torch.dtype = torch.float64) -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 2)).to(dtype)


def plain_loop(workload, model, updates, seed=0, **sgd):
    """The oracle: torch's own SGD on the same rows in the same order."""
    inputs, targets = (torch.as_tensor(array) for array in workload.data)
    groups = (
        workload.optimizer(model)
        if callable(workload.optimizer)
        else [{"params": model.parameters(), **workload.optimizer}]
    )
    rates = [group.get("lr", 1.0) for group in groups]
    for group, rate in zip(groups, rates, strict=True):
        group["lr"] = sgd["lr"] * rate / rates[0]
    optimizer = torch.optim.SGD(groups, momentum=sgd.get("momentum", 0.0))
    source = as_source(workload.data)
    sampler = Sampler(source.order, len(source), workload.batch_size, seed)
    for batch in range(updates):
        rows = torch.as_tensor(sampler.rows(batch, 0, sampler.size(batch)))
        optimizer.zero_grad()
        F.mse_loss(model(inputs[rows]), targets[rows]).backward()
        optimizer.step()
    return model


def two_groups(model: nn.Module) -> list[dict]:
    return [
        {"params": model[0].parameters(), "lr": 0.1},
        {"params": model[2].parameters(), "lr": 0.02, "weight_decay": 0.1},
    ]


SETTINGS = [
    pytest.param({}, 0.0, id="plain"),
    pytest.param({}, 0.9, id="momentum"),
    pytest.param({"weight_decay": 0.1}, 0.6, id="weight-decay"),
    pytest.param({"weight_decay": 0.1, "nesterov": True}, 0.6, id="nesterov"),
    pytest.param(two_groups, 0.6, id="two-parameter-groups"),
]


@pytest.mark.parametrize(("optimizer", "momentum"), SETTINGS)
@pytest.mark.parametrize(
    ("dtype", "updates", "tolerance"),
    [(torch.float64, 50, 1e-12), (torch.float32, 10, 1e-6)],
)
@pytest.mark.parametrize("speeds", [(1.0,), (1.0, 2.7), (5.0, 1.0, 3.0)], ids=["k1", "k2", "k3"])
def test_one_group_equals_a_plain_loop(
    fleet, regression, optimizer, momentum, dtype, updates, tolerance, speeds
):
    workload = regression(partial(net, dtype), str(dtype).split(".")[1], optimizer=optimizer)
    running = fleet(workload, speeds)
    session = running.run(updates, learning_rate=0.05, momentum=momentum)
    oracle = plain_loop(workload, net(dtype), updates, lr=0.05, momentum=momentum)
    assert session.history.columns["version"] == list(range(1, updates + 1))
    for ours, theirs in zip(running.model.parameters(), oracle.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=tolerance)


def test_the_loop_is_sensitive_to_one_row(fleet, regression):
    """The oracle would notice a single row used twice or in another order."""
    workload = regression(net)
    running = fleet(workload)
    running.run(50, momentum=0.6)
    other = plain_loop(workload, net(), 50, seed=1, lr=0.05, momentum=0.6)
    worst = max(
        (a - b).abs().max().item()
        for a, b in zip(running.model.parameters(), other.parameters(), strict=True)
    )
    assert worst > 1e-4


class Unused(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.used = nn.Linear(6, 2).double()
        self.unused = nn.Linear(6, 2).double()
        self.frozen = nn.Linear(2, 2).double().requires_grad_(False)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.frozen(self.used(inputs))


@pytest.mark.parametrize("groups", [1, 2])
def test_a_parameter_without_a_gradient_stays_bit_identical(fleet, regression, groups):
    workload = regression(Unused, optimizer={"weight_decay": 0.3})
    running = fleet(workload, (1.0, 2.0))
    before = copy.deepcopy(running.model.state_dict())
    running.run(20, groups=groups, momentum=0.5)
    after = running.model.state_dict()
    for name in before:
        same = torch.equal(before[name], after[name])
        assert same == (not name.startswith("used")), name


class Sometimes(nn.Module):
    """Its second layer gets its first gradient only at the third batch."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.first = nn.Linear(6, 2).double()
        self.later = nn.Linear(6, 2).double()
        self.calls = 0

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        outputs = self.first(inputs)
        return outputs + self.later(inputs) if self.calls > 2 else outputs


def test_a_gradient_that_comes_late_gets_its_own_first_velocity(fleet, regression):
    workload = regression(Sometimes)
    running = fleet(workload)
    running.run(8, momentum=0.8)
    oracle = plain_loop(workload, Sometimes(), 8, lr=0.05, momentum=0.8)
    for ours, theirs in zip(running.model.parameters(), oracle.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-12)


def test_a_changed_strategy_takes_effect_on_the_next_update(fleet, regression):
    """Constant gradient: the move of each update is known exactly."""
    workload = regression(Constant, loss=mean_output)
    running = fleet(workload)
    running.run(1, learning_rate=2.0**-4, momentum=0.5)
    assert running.model.weight.detach().tolist() == [1 - 2.0**-4] * 3
    running.run(1, learning_rate=2.0**-2, momentum=0.25)
    # velocity 1, then 0.25 * 1 + 1
    assert running.model.weight.detach().tolist() == [1 - 2.0**-4 - 2.0**-2 * 1.25] * 3


class Constant(nn.Module):
    """The gradient of each entry of its weight is exactly 1, whatever the rows."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3, dtype=torch.float64))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.weight.sum().expand(len(inputs), 2)


def mean_output(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return outputs.mean()


@pytest.mark.parametrize("groups", [1, 2, 3, 4])
def test_every_update_counts_exactly_once(fleet, regression, groups):
    delays = torch.Generator().manual_seed(groups)
    workload = regression(Constant, loss=mean_output)
    running = fleet(
        workload,
        (1.0,) * 4,
        step_s=lambda device, samples: float(torch.rand((), generator=delays)) + 0.01,
    )
    session = running.run(1000, groups=groups, learning_rate=2.0**-10)
    assert running.model.weight.detach().tolist() == [1 - 1000 * 2.0**-10] * 3
    assert session.history.columns["version"] == list(range(1, 1001))
    mean = session.history.mean("staleness")
    assert mean == pytest.approx(groups - 1, abs=0.05)
    epochs, rows = divmod(sum(session.history.columns["samples"]), 100)
    assert epochs == 250
    assert rows == 0


def test_a_low_precision_and_a_mixed_model_train(fleet, regression):
    class Mixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(1)
            self.low = nn.Linear(6, 4).bfloat16()
            self.high = nn.Linear(4, 2).double()

        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            return self.high(self.low(inputs.bfloat16()).double())

    running = fleet(regression(Mixed), (1.0, 1.0))
    session = running.run(100, groups=2, learning_rate=0.1)
    losses = session.history.columns["loss"]
    assert losses[-1] < 0.2 * losses[0]
    assert running.model.low.weight.dtype == torch.bfloat16


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.first = nn.Linear(6, 6, bias=False).double()
        self.second = nn.Linear(6, 6, bias=False).double()
        self.second.weight = self.first.weight
        self.last = nn.Linear(6, 2).double()

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.last(self.second(torch.tanh(self.first(inputs))))


def test_tied_weights_stay_tied_and_match_the_plain_loop(fleet, regression):
    workload = regression(Tied)
    running = fleet(workload, (1.0, 3.0))
    running.run(50, momentum=0.5)
    oracle = plain_loop(workload, Tied(), 50, lr=0.05, momentum=0.5)
    assert running.model.first.weight is running.model.second.weight
    torch.testing.assert_close(running.model.first.weight, oracle.first.weight, rtol=0, atol=1e-12)
