from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from omnivore_ray import Target, Workload
from omnivore_ray.workload import RUN_METRICS

GOOD = Workload(model=nn.Identity, data=object(), loss=F.mse_loss, metrics={"accuracy": F.l1_loss})


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"model": nn.Linear(1, 1)}, "Workload.model is a module; give a zero-argument callable"),
        ({"model": 3}, "Workload.model=3 is not callable"),
        ({"loss": "mse"}, "Workload.loss='mse' is not callable"),
        ({"data": None}, "Workload.data=None"),
        ({"batch_size": 0}, "batch_size=0"),
        ({"batch_size": 2.0}, "batch_size=2.0"),
        ({"metrics": {"accuracy": 1}}, r"metrics\['accuracy'\]=1 is not callable"),
        ({"metrics": {"loss": F.l1_loss}}, "has the name 'loss', which every run uses itself"),
        ({"metrics": [F.l1_loss]}, "give a dict of name to callable"),
        ({"optimizer": {"lr": 0.1}}, "sets 'lr'; the strategy's learning_rate sets it"),
        ({"optimizer": {"momentum": 0.1}}, "sets 'momentum'"),
        ({"optimizer": {"betas": 0.1}}, "'betas', which torch.optim.SGD does not take"),
        ({"optimizer": torch.optim.SGD([torch.zeros(1)])}, "give a dict of torch.optim.SGD"),
        ({"head": 3}, "Workload.head=3"),
        ({"name": "../up"}, r"Workload.name='../up'"),
    ],
)
def test_illegal_fields_are_named_with_the_fix(fields, said):
    with pytest.raises(ValueError, match=said):
        replace(GOOD, **fields)


def test_a_target_is_met_from_its_own_side_and_never_by_nan():
    high, low = Target("accuracy", at_least=0.9), Target("loss", at_most=0.1)
    assert (high.reached(0.9), high.reached(0.89), high.reached(math.nan)) == (True, False, False)
    assert (low.reached(0.1), low.reached(0.11), low.reached(math.nan)) == (True, False, False)
    assert (high.mode, low.mode) == ("max", "min")


@pytest.mark.parametrize("text", ["accuracy>=0.97", "loss<=0.05", "seconds>=1e+03"])
def test_a_target_is_read_from_the_form_it_is_written_in(text):
    target = Target.parse(text)
    assert Target.parse(str(target)) == target


@pytest.mark.parametrize("text", ["accuracy", "accuracy>0.9", "accuracy>=high", ">=3", "a>=1-"])
def test_other_forms_of_a_target_are_refused(text):
    with pytest.raises(ValueError, match="write metric>=number"):
        Target.parse(text)


def test_a_target_needs_one_bound_and_a_metric_the_workload_has():
    with pytest.raises(ValueError, match="exactly one"):
        Target("loss")
    with pytest.raises(ValueError, match="exactly one"):
        Target("loss", at_least=1, at_most=2)
    with pytest.raises(ValueError, match="the bound nan"):
        Target("loss", at_most=math.nan)
    with pytest.raises(ValueError, match=r"unknown metric 'acuracy'; .* accuracy, loss"):
        Target("acuracy", at_least=0.9).check(GOOD)
    for name in ("accuracy", "loss", "updates", "samples", "seconds"):
        assert name in (*RUN_METRICS, *GOOD.metrics)
        Target(name, at_least=1).check(GOOD)
