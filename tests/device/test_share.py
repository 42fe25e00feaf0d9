"""A share depends on its lease alone, and what fails says where and why."""

from __future__ import annotations

import pickle
import random
import threading

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from omnivore_ray.data.sources import as_source
from omnivore_ray.device.share import ShareRunner
from omnivore_ray.device.step import TorchTrainer
from omnivore_ray.device.trainer import Step
from omnivore_ray.errors import OmnivoreError
from omnivore_ray.update.layout import Layout
from omnivore_ray.workload import Workload

ROWS = np.random.default_rng(0).standard_normal((40, 3)).astype("float32")
DATA = (ROWS, ROWS[:, :2] + 1)


def make_net() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(3, 8), nn.Dropout(0.5), nn.Linear(8, 2))


class Bench:
    """One device with its own module, and blocks to read and write."""

    def __init__(
        self, make=make_net, trainer=None, name="cpu-0@here", seed=0, batch_size=8, **fields
    ):
        module = make()
        workload = Workload(model=make, data=DATA, **({"loss": F.mse_loss} | fields))
        source = as_source(DATA)
        self.runner = ShareRunner(
            name=name,
            trainer=trainer or TorchTrainer(module, workload),
            train=source,
            validation=source,
            batch_size=batch_size,
            seed=seed,
        )
        tensors = [*module.named_parameters(), *module.named_buffers()]
        self.state = {name: tensor.detach().clone() for name, tensor in tensors}
        self.layout = Layout.of(self.state)
        self.block = self.layout.zeros()
        self.out = self.layout.views(self.block)

    def share(self, batch=0, start=0, stop=8, weight=1.0):
        return self.runner.gradient(
            batch=batch, start=start, stop=stop, weight=weight, state=self.state, out=self.out
        )


def test_the_same_lease_gives_the_same_bits_on_any_device_at_any_time():
    """Dropout included: the mask follows from seed, batch and rows."""
    one, other = Bench(name="one"), Bench(name="other")
    first = one.share(batch=3, start=2, stop=6)
    kept = one.block.clone()
    for batch in (0, 1, 2):
        other.share(batch=batch)
    torch.rand(17), np.random.rand(3), random.random()
    again = other.share(batch=3, start=2, stop=6)
    assert again == first
    assert torch.equal(other.block, kept)


@pytest.mark.parametrize("changed", [{"batch": 6}, {"start": 4, "stop": 8}])
def test_other_rows_draw_another_mask(changed):
    """The model ignores its inputs, so that only what it drew can differ."""

    class Mask(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(64))

        def forward(self, inputs):
            drawn = F.dropout(self.weight, 0.5) * float(np.random.rand()) * random.random()
            return drawn.expand(len(inputs), 64)

    def mean(outputs, targets):
        return outputs.mean()

    one = Bench(Mask, loss=mean)
    one.share(batch=1, start=0, stop=4)
    first = one.block.clone()
    one.share(**({"batch": 1, "start": 0, "stop": 4} | changed))
    assert not torch.equal(first, one.block)
    another = Bench(Mask, loss=mean, seed=1)
    another.share(batch=1, start=0, stop=4)
    assert not torch.equal(first, another.block)


def test_augmentation_by_numpy_or_by_random_is_seeded_too():
    class Drawing(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(2))

        def forward(self, inputs):
            drawn = torch.tensor([np.random.rand(), random.random()], dtype=torch.float32)
            return (self.weight * drawn).expand(len(inputs), 2)

    bench = Bench(Drawing)
    blocks = []
    for _ in range(2):
        bench.share(batch=1)
        blocks.append(bench.block.clone())
        np.random.seed(7), random.seed(7)
    assert torch.equal(*blocks)


def test_weighted_shares_add_up_to_the_gradient_of_the_whole_batch():
    def plain():
        torch.manual_seed(1)
        return nn.Linear(3, 2).double()

    def loss(outputs, targets):
        return F.mse_loss(outputs, targets.double())

    class Double(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = plain()

        def forward(self, inputs):
            return self.inner(inputs.double())

    bench = Bench(Double, loss=loss)
    whole = bench.share()
    expected = bench.block.clone()
    total = bench.layout.zeros()
    losses = []
    for start, stop in ((0, 3), (3, 4), (4, 8)):
        weight = (stop - start) / 8
        losses.append(weight * bench.share(start=start, stop=stop, weight=weight).loss)
        bench.layout.add(total, bench.block)
    assert sum(losses) == pytest.approx(whole.loss, rel=1e-12)
    sums, wanted = bench.layout.views(total), bench.layout.views(expected)
    for name in sums:
        torch.testing.assert_close(sums[name], wanted[name], rtol=1e-12, atol=1e-15)


class Fixed:
    """A trainer that returns what it is given."""

    def __init__(self, **step):
        self.step = Step(**({"loss": 0.0, "samples": 8} | step))

    def gradient(self, state, batch):
        return self.step

    def evaluate(self, state, batch):
        return {"rows": float(len(batch[0])), "first": float(batch[0][0, 0])}


def buffered() -> nn.Module:
    return nn.BatchNorm1d(3)


def test_what_has_nothing_to_say_is_zero_and_not_present():
    gradients = {"weight": torch.ones(3), "bias": None}
    buffers = {"running_mean": torch.zeros(3), "running_var": torch.full((3,), 2.0)}
    bench = Bench(buffered, Fixed(gradients=gradients, buffers=buffers))
    bench.block.fill_(255)  # what an earlier lease left there
    share = bench.share(weight=0.5)
    present = dict(zip(bench.layout.names, share.present, strict=True))
    assert present == {
        "weight": 1, "bias": 0, "running_mean": 0, "running_var": 1, "num_batches_tracked": 0
    }  # fmt: skip
    assert bench.out["weight"].tolist() == [0.5] * 3
    assert bench.out["bias"].tolist() == [0.0] * 3
    assert bench.out["running_var"].tolist() == [2.0] * 3  # buffers are not weighted


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_one_bad_entry_makes_a_share_not_finite(dtype, bad):
    gradient = torch.ones(1000, dtype=dtype)
    fine = Bench(lambda: nn.BatchNorm1d(1000), Fixed(gradients={"weight": gradient}))
    assert fine.share().finite
    spoiled = gradient.clone()
    spoiled[517] = bad
    spoiled[3] = -bad
    assert (
        not Bench(lambda: nn.BatchNorm1d(1000), Fixed(gradients={"weight": spoiled})).share().finite
    )


def test_large_half_precision_gradients_are_finite():
    gradient = torch.full((1000,), 60_000.0, dtype=torch.float16)
    bench = Bench(lambda: nn.BatchNorm1d(1000).half(), Fixed(gradients={"weight": gradient}))
    assert bench.share().finite


def test_an_evaluation_is_cut_into_batches_and_weighted_by_their_rows():
    bench = Bench(trainer=Fixed(gradients={}))
    told = bench.runner.evaluate(start=3, stop=24, state=bench.state)
    pieces = [(8, 3), (8, 11), (5, 19)]
    assert told["rows"] == pytest.approx(sum(n * n for n, _ in pieces) / 21)
    assert told["first"] == pytest.approx(sum(n * ROWS[row, 0] for n, row in pieces) / 21)


class Failing(nn.Module):
    def __init__(self, error):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))
        self.error = error

    def forward(self, inputs):
        raise self.error


class Unpicklable(Exception):
    """Like those of many libraries: it holds a lock, and cannot be made from its message."""

    def __init__(self, code, lock):
        super().__init__(f"code {code}")
        self.lock = lock


@pytest.mark.parametrize("kind", ["train", "evaluate"])
@pytest.mark.parametrize(
    "error", [KeyError("missing column"), Unpicklable(7, threading.Lock())], ids=["key", "lock"]
)
def test_a_failure_names_device_rows_cause_and_traceback(kind, error):
    bench = Bench(lambda: Failing(error), name="gpu-1@there", metrics={"error": F.mse_loss})
    with pytest.raises(OmnivoreError) as raised:
        if kind == "train":
            bench.share(batch=2, start=1, stop=3)
        else:
            bench.runner.evaluate(start=4, stop=6, state=bench.state)
    message = str(raised.value)
    rows = bench.runner._sampler.rows(2, 1, 3).tolist() if kind == "train" else [4, 5]
    first_line = message.splitlines()[0]
    assert "gpu-1@there" in first_line
    assert f"rows {rows[0]}, {rows[1]}: {type(error).__name__}: {error}" in first_line
    assert "Traceback" in message
    assert "raise self.error" in message
    assert raised.value.__cause__ is error


def test_the_error_itself_travels_with_its_cause_or_alone():
    bench = Bench(lambda: Failing(KeyError("missing")))
    with pytest.raises(OmnivoreError) as raised:
        bench.share()
    there = pickle.loads(pickle.dumps(raised.value))
    assert str(there) == str(raised.value)
    assert isinstance(there.__cause__, KeyError)
    bench = Bench(lambda: Failing(Unpicklable(7, threading.Lock())))
    with pytest.raises(OmnivoreError) as raised:
        bench.share()
    raised.value.__cause__ = None
    assert "Unpicklable: code 7" in str(pickle.loads(pickle.dumps(raised.value)))


def test_many_rows_are_counted_not_listed():
    bench = Bench(lambda: Failing(KeyError("x")), batch_size=30)
    with pytest.raises(OmnivoreError, match=r"rows 0, 1, .* 7, \.\.\. \(30 rows\)") as raised:
        bench.runner.evaluate(start=0, stop=40, state=bench.state)
    assert len(str(raised.value).splitlines()[0]) < 200
