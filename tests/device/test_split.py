"""A cut model computes what the whole one does, or a sentence says why it stays whole."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from omnivore_ray.device.head import TorchHead
from omnivore_ray.device.split import candidates, split_at, split_for
from omnivore_ray.device.step import TorchTrainer
from omnivore_ray.workload import Workload
from omnivore_ray.zoo.caffenet import CaffeNet
from omnivore_ray.zoo.char_lstm import CharLSTM, next_character_loss
from omnivore_ray.zoo.lenet import LeNet

ROWS = 4
CLASSES = torch.tensor([0, 1, 2, 1])
IMAGES = torch.linspace(-1, 1, ROWS * 64).reshape(ROWS, 1, 8, 8)


class Functional(nn.Module):
    """Flattens between modules, and begins its head in place."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 4, 3)
        self.relu = nn.ReLU(inplace=True)
        self.fc = nn.Linear(4 * 36, 5)

    def forward(self, images):
        x = torch.flatten(self.conv(images), 1)
        return self.fc(self.relu(x.view(x.size(0), -1)))


class Residual(nn.Module):
    """A skip across the cut, BatchNorm and dropout on both sides, buffers everywhere."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.Dropout(0.3))
        self.block = nn.Sequential(nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU())
        self.tail = nn.Sequential(nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4), nn.Dropout(0.3))
        self.fc = nn.Linear(4, 5)

    def forward(self, images):
        x = self.stem(images)
        y = self.block(x)
        return self.fc((x + self.tail(y)).mean((2, 3)))


class TwoInputs(nn.Module):
    """The head needs integers of the batch; one module is called twice on one side."""

    def __init__(self):
        super().__init__()
        self.body = nn.Linear(8, 8)
        self.table = nn.Embedding(3, 8)
        self.out = nn.Linear(8, 5)

    def forward(self, x, kind):
        x = self.body(torch.relu(self.body(x)))
        return self.out(x + self.table(kind))


class Frozen(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Flatten(), nn.Linear(64, 8), nn.Linear(8, 8), nn.Linear(8, 5))
        self[2].weight.requires_grad_(False)


TWO = {"x": IMAGES.flatten(1)[:, :8], "kind": CLASSES, "label": CLASSES}
MODELS = {
    "lenet": (lambda: LeNet(image_size=8), "classifier", (IMAGES, CLASSES)),
    "inside a sequence": (lambda: LeNet(image_size=8), "classifier.3", (IMAGES, CLASSES)),
    "functional": (Functional, "relu", (IMAGES, CLASSES)),
    "functional, after in place": (Functional, "fc", (IMAGES, CLASSES)),
    "skip": (Residual, "tail", (IMAGES, CLASSES)),
    "dict batch": (TwoInputs, "table", TWO),
    "several inputs": (TwoInputs, "table", (TWO["x"], CLASSES, CLASSES)),
    "frozen": (Frozen, "2", (IMAGES, CLASSES)),
    "char lstm": (
        lambda: CharLSTM(symbols=5, embedding=4, hidden=6),
        "classifier",
        (CLASSES[:, None].repeat(1, 3), CLASSES[:, None].repeat(1, 3)),
    ),
}


def loss_of(kind):
    return next_character_loss if kind == "char lstm" else F.cross_entropy


def make(kind):
    torch.manual_seed(3)
    model, name, batch = MODELS[kind]
    module = model()
    target = "label" if isinstance(batch, dict) else "target"
    workload = Workload(model=model, data="unused", loss=loss_of(kind), head=name, target=target)
    return module, workload, batch


def state_of(module, names=None):
    tensors = [*module.named_parameters(), *module.named_buffers()]
    return {n: t.detach().clone() for n, t in tensors if names is None or n in names}


@pytest.mark.parametrize("kind", MODELS)
def test_forward_head_and_backward_give_what_the_whole_model_gives(kind):
    module, workload, batch = make(kind)
    split, _ = split_for(workload, module, batch)
    trainer = TorchTrainer(module, workload, split=split)
    head = TorchHead(split.head, workload)
    whole = state_of(module)
    targets = batch["label"] if isinstance(batch, dict) else batch[-1]
    for seed in range(2):
        torch.manual_seed(seed)
        expected = trainer.gradient(whole, batch)
        torch.manual_seed(seed)
        # each side has its own part of the state
        activations = trainer.forward(state_of_part(whole, split.backbone_names), batch)
        step = head.gradient(state_of_part(whole, split.head_names), activations, targets)
        back = trainer.backward(step.activation_gradients)
        assert step.loss == pytest.approx(expected.loss)
        assert (step.samples, back.samples, math.isnan(back.loss)) == (ROWS, ROWS, True)
        assert not back.gradients.keys() & step.gradients.keys()
        gradients = {**back.gradients, **step.gradients}
        assert gradients.keys() == expected.gradients.keys()
        for name, gradient in expected.gradients.items():
            torch.testing.assert_close(gradients[name], gradient)
        buffers = {**back.buffers, **step.buffers}
        for name, buffer in expected.buffers.items():
            torch.testing.assert_close(buffers[name], buffer)
        whole = {n: t + 0.1 if t.is_floating_point() else t for n, t in whole.items()}


def state_of_part(whole, names):
    return {name: whole[name] for name in names}


@pytest.mark.parametrize("kind", MODELS)
def test_the_parts_share_all_tensors_of_the_model_under_their_own_names(kind):
    module, workload, batch = make(kind)
    before = state_of(module)
    modes = [part.training for part in module.modules()]
    split, _ = split_for(workload, module, batch)
    assert sorted([*split.backbone_names, *split.head_names]) == sorted(before)
    own = dict([*module.named_parameters(), *module.named_buffers()])
    for part, names in ((split.backbone, split.backbone_names), (split.head, split.head_names)):
        found = dict([*part.named_parameters(), *part.named_buffers()])
        assert found.keys() == set(names)
        assert all(found[name] is own[name] for name in names)
    assert [part.training for part in module.modules()] == modes
    for name, tensor in state_of(module).items():  # the comparison leaves no trace
        assert torch.equal(tensor, before[name])


def test_integers_cross_without_a_gradient():
    module, workload, batch = make("dict batch")
    split, _ = split_for(workload, module, batch)
    trainer = TorchTrainer(module, workload, split=split)
    activations = trainer.forward(state_of(module), batch)
    step = TorchHead(split.head, workload).gradient(state_of(module), activations, CLASSES)
    crossed = [
        (a.is_floating_point(), g is not None)
        for a, g in zip(activations, step.activation_gradients, strict=True)
    ]
    assert sorted(crossed) == [(False, False), (True, True)]


def test_caffenet_keeps_its_weights_in_the_head():
    with torch.device("meta"):
        module = CaffeNet()
    assert {"classifier", "classifier.1", "features.4"} <= set(candidates(module))


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(64, 64), nn.Linear(64, 64)
        self.last.weight = self.first.weight

    def forward(self, images):
        return self.last(self.first(images.flatten(1)))


class Twice(nn.Module):
    def __init__(self):
        super().__init__()
        self.shared, self.last, self.unused = nn.Linear(64, 64), nn.Linear(64, 64), nn.Linear(1, 1)

    def forward(self, images):
        return self.shared(self.last(self.shared(images.flatten(1))))


class Branching(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(64, 64), nn.Linear(64, 5)

    def forward(self, images):
        x = self.first(images.flatten(1))
        return self.last(x if x.sum() > 0 else -x)


class Sized(Branching):
    def forward(self, images):
        rows = images.size(0)
        return self.last(self.first(images.flatten(1))).view(rows, -1)


class FirstLast(Branching):
    def forward(self, images):
        x = self.first(images.flatten(1)).sum(0, keepdim=True)
        return self.last(x).expand(4, -1)


class Mode(Branching):
    def forward(self, images):
        return self.last(F.dropout(self.first(images.flatten(1)), training=self.training))


class Calls(Branching):
    def __init__(self):
        super().__init__()
        self.register_buffer("calls", torch.tensor(0))

    def forward(self, images):
        self.calls = self.calls + 1
        return self.last(self.first(images.flatten(1)))


@pytest.mark.parametrize(
    ("model", "name", "words"),
    [
        (Tied, "last", "both sides would use first.weight"),
        (Twice, "last", "both sides would use shared.bias, shared.weight"),
        (Twice, "unused", "never called"),
        (Branching, "last", "cannot be traced"),
        (Calls, "last", "the buffer calls differs"),
        (Mode, "last", "self.training"),
        (Sized, "last", "a value of type int would have to cross"),
        (FirstLast, "last", "has not one entry for each of 4 rows"),
        (Functional, "conv", "head would be the whole model"),
        (Functional, "", "is no module"),
        (Functional, "dense", "choose from relu, fc"),
    ],
)
def test_a_cut_that_cannot_be_is_refused_in_words(model, name, words):
    with pytest.raises(ValueError, match=words):
        split_at(model(), name, (IMAGES, CLASSES), F.cross_entropy, "target")


def test_a_cut_that_computes_something_else_is_refused():
    class Hidden(Branching):
        """Hands a value on behind the graph's back, which the trace cannot see."""

        def forward(self, images):
            x = self.first(images.flatten(1))
            return self.last(x * (2.0 if type(images) is torch.Tensor else 1.0))

    with pytest.raises(ValueError, match="the model stays whole: cut at 'last', the loss differs"):
        split_at(Hidden(), "last", (IMAGES, CLASSES), F.cross_entropy, "target")


def test_a_loss_that_needs_the_input_is_refused():
    with pytest.raises(ValueError, match=r"more than \(outputs, targets\)"):
        split_at(
            Functional(), "fc", (IMAGES, CLASSES), lambda o, t, x: F.cross_entropy(o, t), "target"
        )


def test_no_head_is_no_cut_and_auto_says_why():
    module, workload, batch = make("lenet")
    for head in (None, "auto"):
        split, reason = split_for(
            Workload(model=workload.model, data="unused", loss=workload.loss, head=head),
            module,
            batch,
        )
        assert split is None
        assert reason


def test_backward_belongs_to_one_forward():
    module, workload, batch = make("lenet")
    split, _ = split_for(workload, module, batch)
    trainer = TorchTrainer(module, workload, split=split)
    with pytest.raises(ValueError, match="without a forward"):
        trainer.backward([None])
    trainer.forward(state_of(module), batch)
    with pytest.raises(ValueError, match="0 gradients for 1 activations"):
        trainer.backward([])
    trainer.forward(state_of(module), batch)
    trainer.evaluate(state_of(module), batch)  # which takes other tensors
    with pytest.raises(ValueError, match="without a forward"):
        trainer.backward([None])
    trainer.forward(state_of(module), batch)
    assert set(trainer.backward([None]).gradients.values()) == {None}


def test_a_trainer_without_a_split_says_so():
    module, workload, batch = make("lenet")
    with pytest.raises(ValueError, match="give TorchTrainer a split"):
        TorchTrainer(module, workload).forward(state_of(module), batch)


@pytest.mark.parametrize("loss", [lambda o, t: o, lambda o, t: F.cross_entropy(o, t).detach()])
def test_the_head_checks_the_loss_as_the_whole_model_does(loss):
    module, workload, batch = make("lenet")
    split, _ = split_for(workload, module, batch)
    broken = Workload(model=workload.model, data="unused", loss=loss)
    activations = split.backbone(batch[0])
    with pytest.raises(ValueError, match=r"Workload\.loss"):
        TorchHead(split.head, broken).gradient(state_of(module), activations, CLASSES)
