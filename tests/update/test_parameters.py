"""Updates against torch's own SGD, buffers against batches one after the other, and refusals."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from omnivore_ray.update.parameters import Contribution, Parameters


def contribution(parameters, gradients=None, buffers=None, weight=1.0):
    """What a device would push: weighted gradients, and buffers where they changed."""
    gradients, buffers = gradients or {}, buffers or {}
    block = parameters.layout.zeros()
    present = bytearray(len(parameters.layout.names))
    for index, (name, view) in enumerate(parameters.layout.views(block).items()):
        value = gradients.get(name, buffers.get(name))
        if value is not None:
            view.copy_(value * weight if name in gradients else value)
            present[index] = 1
    return Contribution(block=block, present=bytes(present), weight=weight)


class Odd(nn.Module):
    """Mixed dtypes, a 0-d, an empty, a frozen and a tied parameter, and buffers of all sorts."""

    def __init__(self) -> None:
        super().__init__()
        self.low = nn.Parameter(torch.tensor([1.0, 2.0, 3.0], dtype=torch.bfloat16))
        self.scale = nn.Parameter(torch.tensor(2.0, dtype=torch.float64))
        self.empty = nn.Parameter(torch.zeros(0, 4))
        self.frozen = nn.Parameter(torch.tensor([7.0]), requires_grad=False)
        self.weight = nn.Parameter(torch.arange(6.0).reshape(2, 3).t())  # not contiguous
        self.again = self.weight
        self.register_buffer("steps", torch.tensor(2**40))
        self.register_buffer("mask", torch.tensor([True, False]))
        self.register_buffer("hidden", torch.tensor([1.5]), persistent=False)
        self.register_buffer("nothing", None)


def odd(**options) -> Parameters:
    return Parameters(Odd(), options)


GRADIENTS = {
    "low": torch.tensor([0.5, -1.0, 0.25], dtype=torch.bfloat16),
    "scale": torch.tensor(0.125, dtype=torch.float64),
    "empty": torch.zeros(0, 4),
    "weight": torch.ones(3, 2),
}


def test_the_model_keeps_its_values_when_its_tensors_move_into_the_block():
    plain, parameters = Odd(), odd()
    assert list(parameters.state_dict()) == list(plain.state_dict())
    for name, value in plain.state_dict().items():
        assert torch.equal(parameters.state_dict()[name], value), name
    assert parameters.model.again is parameters.model.weight
    assert set(parameters.layout.names) == {
        "low", "scale", "empty", "weight", "steps", "mask", "hidden"
    }  # fmt: skip


OPTIONS = [{}, {"weight_decay": 0.1}, {"maximize": True}, {"dampening": 0.3}]


@pytest.mark.parametrize(
    ("momentum", "options"),
    [
        *((momentum, options) for momentum in (0.0, 0.9, -0.4) for options in OPTIONS),
        (0.9, {"nesterov": True}),  # torch refuses it with less momentum
    ],
    ids=str,
)
def test_updates_are_those_of_torch_sgd(momentum, options):
    parameters = odd(**options)
    steps = [GRADIENTS, {"scale": GRADIENTS["scale"]}, GRADIENTS]
    for gradients in steps:
        parameters.set_strategy(0.25, momentum)
        parameters.update([contribution(parameters, gradients)], parameters.buffers())
    model = Odd()
    # torch's constructor refuses negative momentum; its step does not
    oracle = torch.optim.SGD(
        [p for p in model.parameters() if p.requires_grad], lr=0.25, momentum=0.5, **options
    )
    oracle.param_groups[0]["momentum"] = momentum
    for gradients in steps:
        for name, parameter in model.named_parameters():
            parameter.grad = gradients[name].clone() if name in gradients else None
        oracle.step()
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(parameters.state_dict()[name], parameter.data, msg=name)
    assert parameters.state_dict()["frozen"].tolist() == [7.0]


def test_negative_momentum_is_what_the_formula_says():
    model = nn.Linear(1, 1, bias=False).double()
    model.weight.data.fill_(1.0)
    parameters = Parameters(model, {})
    parameters.set_strategy(0.5, -0.5)
    expected, velocity = 1.0, 0.0
    for step, gradient in enumerate([1.0, 2.0, -1.0]):
        pushed = contribution(parameters, {"weight": torch.tensor([[gradient]]).double()})
        parameters.update([pushed], {})
        velocity = gradient if step == 0 else -0.5 * velocity + gradient
        expected -= 0.5 * velocity
        assert model.weight.item() == expected


def test_pushed_blocks_are_only_read():
    parameters = odd(weight_decay=0.5, nesterov=True)
    for weights in ([1.0], [0.25, 0.75]):
        pushed = [contribution(parameters, GRADIENTS, weight=weight) for weight in weights]
        before = [part.block.clone() for part in pushed]
        parameters.update(pushed, parameters.buffers())
        assert all(torch.equal(b, part.block) for b, part in zip(before, pushed, strict=True))


def test_members_gradients_add_up_even_where_only_one_has_one():
    parameters, whole = odd(), odd()
    for each in (parameters, whole):
        each.set_strategy(1.0, 0.0)
    parts = [
        contribution(parameters, GRADIENTS, weight=0.25),
        contribution(parameters, {"scale": GRADIENTS["scale"]}, weight=0.75),
    ]
    parameters.update(parts, parameters.buffers())
    alone = {**GRADIENTS, "low": GRADIENTS["low"] / 4, "weight": GRADIENTS["weight"] / 4}
    whole.update([contribution(whole, alone)], whole.buffers())
    for name, value in whole.state_dict().items():
        assert torch.equal(parameters.state_dict()[name], value), name


# -- buffers --------------------------------------------------------------------------------


def batch_norm(momentum=0.1) -> nn.Module:
    torch.manual_seed(0)
    return nn.BatchNorm1d(3, momentum=momentum).double()


def forward(model, buffers, rows):
    """The buffers after a step from the given ones."""
    local = copy.deepcopy(model)
    local.load_state_dict(buffers, strict=False)
    local.train()
    local(rows)
    return {name: buffer.detach().clone() for name, buffer in local.named_buffers()}


def test_two_stale_groups_leave_the_statistics_of_both_batches_one_after_the_other():
    model = batch_norm()
    oracle = copy.deepcopy(model).train()
    parameters = Parameters(model, {})
    batches = [torch.randn(8, 3).double() * (i + 1) + i for i in range(5)]
    for batch in batches[:3]:
        read = parameters.buffers()
        pushed = forward(model, read, batch)
        parameters.update([contribution(parameters, {}, pushed)], read)
    read = parameters.buffers()  # both groups read this version
    pushed = [forward(model, read, batch) for batch in batches[3:]]
    for buffers in pushed:
        parameters.update([contribution(parameters, {}, buffers)], read)
    for batch in batches:
        oracle(batch)
    assert model.num_batches_tracked.item() == 5
    assert model.num_batches_tracked.dtype == torch.int64
    torch.testing.assert_close(model.running_mean, oracle.running_mean, rtol=1e-12, atol=0)
    torch.testing.assert_close(model.running_var, oracle.running_var, rtol=1e-12, atol=0)


def test_members_of_one_group_count_one_update_and_average_their_statistics():
    model = batch_norm(momentum=0.5)
    parameters = Parameters(model, {})
    rows = torch.randn(10, 3).double()
    read = parameters.buffers()
    parts = [
        contribution(parameters, {}, forward(model, read, rows[start:stop]), weight=weight)
        for start, stop, weight in ((0, 3, 0.3), (3, 5, 0.2), (5, 10, 0.5))
    ]
    parameters.update(parts, read)
    assert model.num_batches_tracked.item() == 1
    torch.testing.assert_close(model.running_mean, 0.5 * rows.mean(0))


def test_a_counter_does_not_lose_a_count_to_rounded_weights():
    """Ten weights of 0.1 add up to just below 1."""
    model = batch_norm()
    parameters = Parameters(model, {})
    changed = {"num_batches_tracked": torch.tensor(1)}
    parts = [contribution(parameters, {}, changed, weight=0.1) for _ in range(10)]
    parameters.update(parts, parameters.buffers())
    assert model.num_batches_tracked.item() == 1


def test_large_counters_stay_exact_and_flags_take_the_last_word():
    parameters = odd()
    read = parameters.buffers()
    changed = {"steps": torch.tensor(2**40 + 1), "mask": torch.tensor([True, True])}
    for _ in range(3):
        parts = [contribution(parameters, {}, changed, weight=w) for w in (0.1, 0.2, 0.7)]
        parameters.update(parts, read)
    assert parameters.model.steps.item() == 2**40 + 3
    assert parameters.model.mask.tolist() == [True, True]


def test_buffers_that_nobody_changed_stay_bit_identical():
    parameters = odd()
    parameters.model.hidden.fill_(0.1)
    before = parameters.buffers()
    parameters.update([contribution(parameters, GRADIENTS)], parameters.buffers())
    assert all(torch.equal(before[n], b) for n, b in parameters.model.named_buffers())


def test_a_member_that_did_not_change_a_buffer_counts_with_what_it_read():
    """Its block may hold anything there: `Step.buffers` may leave out what did not change."""
    parameters = odd()
    parts = [
        contribution(parameters, {}, {"hidden": torch.tensor([3.5])}, weight=0.5),
        contribution(parameters, {}, {}, weight=0.5),
    ]
    parameters.update(parts, parameters.buffers())
    assert parameters.model.hidden.tolist() == [2.5]


# -- snapshots --------------------------------------------------------------------------------


def state_of(parameters):
    return {
        **{name: value.clone() for name, value in parameters.state_dict().items()},
        **{f"velocity {name}": value.clone() for name, value in parameters.velocity().items()},
    }


def assert_equal_states(one, other):
    assert one.keys() == other.keys()
    for name in one:
        assert torch.equal(one[name], other[name]), name


def test_a_snapshot_restores_parameters_buffers_and_velocity_exactly():
    parameters = odd()
    parameters.set_strategy(0.1, 0.9)

    def update(gradients):
        changed = {"steps": parameters.model.steps + 1}
        parameters.update([contribution(parameters, gradients, changed)], parameters.buffers())

    update({"scale": GRADIENTS["scale"]})
    snapshot, before = parameters.snapshot(), state_of(parameters)
    update(GRADIENTS)
    after = state_of(parameters)
    parameters.restore(snapshot)
    assert_equal_states(state_of(parameters), before)
    update(GRADIENTS)
    assert_equal_states(state_of(parameters), after)
    parameters.restore(snapshot)  # a snapshot can be used more than once
    assert_equal_states(state_of(parameters), before)
    parameters.restore(parameters.initial)
    assert parameters.velocity() == {}
    assert_equal_states(state_of(parameters), Odd().state_dict())


# -- refusals --------------------------------------------------------------------------------


class Extra(nn.Linear):
    def __init__(self) -> None:
        super().__init__(2, 2)

    def get_extra_state(self):
        return {"anything": 1}

    def set_extra_state(self, state):
        pass


def with_complex_weight() -> nn.Module:
    model = nn.Linear(2, 2)
    model.weight = nn.Parameter(torch.zeros(2, 2, dtype=torch.complex64))
    return model


def frozen() -> nn.Module:
    return nn.Linear(2, 2).requires_grad_(False)


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (lambda: nn.Sequential(nn.Embedding(3, 2, sparse=True)), "module '0'.*sparse=False"),
        (lambda: nn.EmbeddingBag(3, 2, sparse=True), "sparse=False"),
        (lambda: nn.Sequential(nn.LazyLinear(2)), "'0.weight' has no shape yet"),
        (with_complex_weight, "'weight' is complex"),
        (lambda: nn.Linear(2, 2, device="meta"), "'weight' is on the meta device"),
        (Extra, "'_extra_state'.*dict, not a tensor"),
        (frozen, "no parameter that requires a gradient"),
        (lambda: "a string", "returned str, not a torch.nn.Module"),
    ],
)
def test_a_model_that_cannot_be_trained_in_groups_is_refused_in_one_sentence(model, words):
    with pytest.raises(ValueError, match=words) as raised:
        Parameters(model(), {})
    assert "\n" not in str(raised.value)


def groups_with(**rates):
    def optimizer(model):
        return [
            {"params": model.get_submodule(name).parameters()}
            | ({} if rate is None else {"lr": rate})
            for name, rate in rates.items()
        ]

    return optimizer


class Two(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False)


@pytest.mark.parametrize(
    ("optimizer", "words"),
    [
        (groups_with(a=0.1, b=None), "every parameter group an lr or none"),
        (groups_with(a=0.1), "leaves out b.weight"),
        (groups_with(a=0.1, b=0.0), "lr must be above 0"),
        (groups_with(a=0.1, b="fast"), "lr"),
        (groups_with(a=0.1, b=float("inf")), "lr"),
        (lambda model: [{"params": [*model.parameters(), nn.Parameter(torch.ones(1))]}], "another"),
        (lambda model: [{"params": model.parameters(), "momentum": 0.9}], "momentum"),
        (lambda model: [{"params": model.parameters(), "betas": 0.9}], "betas"),
        (lambda model: [{"params": model.named_parameters()}], "named_parameters"),
        (lambda model: list(model.parameters()), "list of dicts, each with 'params'"),
        (lambda model: torch.optim.SGD(model.parameters()), "list of dicts, each with 'params'"),
        (lambda model: [{"params": model.parameters()}, {"params": [model.a.weight]}], "more than"),
    ],
)
def test_optimizer_options_that_cannot_be_kept_are_refused(optimizer, words):
    with pytest.raises(ValueError, match=words):
        Parameters(Two(), optimizer)


def test_groups_keep_their_ratio_and_their_own_options():
    model = Two()
    model.a.weight.data.fill_(1.0), model.b.weight.data.fill_(1.0)
    parameters = Parameters(
        model,
        lambda m: [
            {"params": m.a.parameters(), "lr": 0.5},
            {"params": m.b.weight, "lr": 0.125, "weight_decay": 1.0},
        ],
    )
    parameters.set_strategy(1.0, 0.0)
    gradients = {"a.weight": torch.full((1, 1), 0.5), "b.weight": torch.full((1, 1), 0.5)}
    parameters.update([contribution(parameters, gradients)], {})
    assert model.a.weight.item() == 1 - 0.5
    assert model.b.weight.item() == 1 - 0.25 * (0.5 + 1.0)


def test_frozen_parameters_may_be_named_in_a_group_or_left_out():
    for optimizer in (
        lambda m: [{"params": m.a.parameters()}, {"params": m.b.parameters()}],
        lambda m: [{"params": m.b.parameters(), "weight_decay": 1.0}],
        lambda m: [{"params": m.parameters()}],
    ):
        model = Two()
        model.a.requires_grad_(False)
        parameters = Parameters(model, optimizer)
        before = model.a.weight.clone()
        gradient = {"b.weight": torch.ones(1, 1)}
        parameters.update([contribution(parameters, gradient)], {})
        assert torch.equal(model.a.weight, before)
