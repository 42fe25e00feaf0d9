"""The black box: gradients of the mean loss, buffers as they end, errors in the user's words."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from omnivore_ray.device.step import TorchTrainer
from omnivore_ray.workload import Workload

INPUTS = torch.arange(12.0).reshape(4, 3) / 10
TARGETS = torch.ones(4, 2)


def workload(loss=F.mse_loss, **fields) -> Workload:
    return Workload(model=nn.Identity, data="unused", loss=loss, **fields)


def state_of(module):
    tensors = [*module.named_parameters(), *module.named_buffers()]
    return {name: tensor.detach().clone() for name, tensor in tensors}


def test_a_step_gives_the_gradients_of_the_mean_loss_at_the_given_parameters():
    module, oracle = nn.Linear(3, 2), nn.Linear(3, 2)
    state = state_of(oracle)  # not the module's own values
    trainer = TorchTrainer(module, workload())
    for _ in range(2):  # gradients do not add up over calls
        step = trainer.gradient(state, (INPUTS, TARGETS))
    loss = F.mse_loss(oracle(INPUTS), TARGETS)
    loss.backward()
    assert step.loss == loss.item()
    assert step.samples == 4
    for name, parameter in oracle.named_parameters():
        assert torch.equal(step.gradients[name], parameter.grad)
        assert torch.equal(state[name], parameter.detach())  # what is lent is not changed


def test_another_state_is_taken_over_whole_and_the_same_one_seen_when_it_changes():
    trainer = TorchTrainer(nn.Linear(3, 2), workload())
    for _ in range(2):
        state = state_of(nn.Linear(3, 2))
        for _ in range(2):
            expected = F.mse_loss(F.linear(INPUTS, state["weight"], state["bias"]), TARGETS)
            assert trainer.gradient(state, (INPUTS, TARGETS)).loss == expected.item()
            state["weight"].mul_(2.0)


class Named(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 2)
        self.seen: object = None

    def forward(self, x, words=None):
        self.seen = words
        return self.linear(x)


def test_a_dict_batch_is_passed_by_name_and_strings_stay_a_list():
    module = Named()
    trainer = TorchTrainer(module, workload(target="label"))
    batch = {"words": ["a", "b", "c", "d"], "label": TARGETS, "x": INPUTS}
    step = trainer.gradient(state_of(module), batch)
    assert module.seen == ["a", "b", "c", "d"]
    assert step.samples == 4


def test_a_tuple_batch_may_hold_several_inputs():
    module = Named()
    step = TorchTrainer(module, workload()).gradient(state_of(module), (INPUTS, "extra", TARGETS))
    assert module.seen == "extra"
    assert step.gradients.keys() == {"linear.weight", "linear.bias"}


@pytest.mark.parametrize(
    ("loss", "words"),
    [
        (lambda o, t: (o - t) ** 2, r"returned \(4, 2\)"),
        (lambda o, t: 1.0, "returned float"),
        (lambda o, t: F.mse_loss(o, t).detach(), "detached"),
        (lambda o, t: t.mean(), "detached"),
    ],
)
def test_a_loss_that_cannot_be_used_is_refused_clearly(loss, words):
    module = nn.Linear(3, 2)
    with pytest.raises(ValueError, match=words):
        TorchTrainer(module, workload(loss)).gradient(state_of(module), (INPUTS, TARGETS))


@pytest.mark.parametrize(
    ("batch", "words"),
    [
        ({"x": INPUTS, "y": TARGETS}, "target='target' is not in the batch, which has 'x', 'y'"),
        (INPUTS, "a batch is a Tensor"),
        ((INPUTS,), "a batch is a tuple"),
    ],
)
def test_a_batch_without_targets_is_refused_clearly(batch, words):
    module = nn.Linear(3, 2)
    with pytest.raises(ValueError, match=words):
        TorchTrainer(module, workload()).gradient(state_of(module), batch)


def test_a_sparse_gradient_is_refused_by_name():
    class Sparse(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Parameter(torch.ones(4, 2))

        def forward(self, rows):
            return F.embedding(rows, self.table, sparse=True)

    module = Sparse()
    with pytest.raises(ValueError, match="gradient of 'table' is sparse"):
        TorchTrainer(module, workload()).gradient(
            state_of(module), (torch.tensor([0, 1, 2, 3]), TARGETS)
        )


class Counting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 2)
        self.unused = nn.Linear(2, 2)
        self.register_buffer("calls", torch.tensor(0))

    def forward(self, inputs):
        self.calls = self.calls + 1  # assigned anew, not changed in place
        return self.linear(inputs)


def test_buffers_assigned_anew_are_seen_and_start_from_the_given_state():
    module = Counting()
    trainer = TorchTrainer(module, workload())
    state = state_of(module)
    for calls in (0, 0, 41):
        state["calls"] = torch.tensor(calls)
        step = trainer.gradient(state, (INPUTS, TARGETS))
        assert step.buffers["calls"].item() == calls + 1
        assert state["calls"].item() == calls
    assert step.gradients["unused.weight"] is None


def test_evaluation_neither_drops_nor_learns_and_training_goes_on_as_before():
    module = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2), nn.Dropout(0.5))
    state = state_of(module)
    oracle = copy.deepcopy(module).eval()
    metrics = {"error": F.mse_loss, "first": lambda outputs, targets: outputs[0, 0]}
    trainer = TorchTrainer(module, workload(metrics=metrics))
    for _ in range(2):
        told = trainer.evaluate(state, (INPUTS, TARGETS))
        assert told["error"] == F.mse_loss(oracle(INPUTS), TARGETS).item()
        assert told["first"] == oracle(INPUTS)[0, 0].item()
        step = trainer.gradient(state, (INPUTS, TARGETS))
        assert module.training
        assert step.buffers["1.num_batches_tracked"].item() == 1


def test_tied_and_frozen_parameters_give_one_gradient_and_none():
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one = nn.Linear(3, 3, bias=False)
            self.two = nn.Linear(3, 3, bias=False)
            self.two.weight = self.one.weight
            self.frozen = nn.Linear(3, 2).requires_grad_(False)

        def forward(self, inputs):
            return self.frozen(self.two(self.one(inputs)))

    module = Tied()
    state = {"one.weight": torch.eye(3)}
    step = TorchTrainer(module, workload()).gradient(state, (INPUTS, TARGETS))
    weight = torch.eye(3).requires_grad_()
    F.mse_loss(module.frozen(INPUTS @ weight.T @ weight.T), TARGETS).backward()
    assert step.gradients.keys() == {"one.weight"}
    torch.testing.assert_close(step.gradients["one.weight"], weight.grad)
