"""The rules that end a request, one by one."""

from __future__ import annotations

import math

import pytest

from omnivore_ray.strategy import Request, Strategy
from omnivore_ray.update.stopping import (
    EXPLOSION_FACTOR,
    SMOOTHING_UPDATES,
    TRUSTED_UPDATES,
    SmoothedLoss,
    Stopping,
)
from omnivore_ray.workload import Target


def smoothed(*losses: float) -> SmoothedLoss:
    loss = SmoothedLoss()
    for value in losses:
        loss.add(value)
    return loss


def stopping(target=None, time_limit_s=None, **budget) -> Stopping:
    request = Request(kind="train", strategy=Strategy(learning_rate=0.1), **budget)
    return Stopping(request=request, target=target, time_limit_s=time_limit_s)


def after(rules, loss, updates=20, samples=640, seconds=4.0):
    return rules.after_update(
        loss=loss.value, smoothed=loss, updates=updates, samples=samples, seconds=seconds
    )


def test_the_smoothed_loss_is_the_weighted_mean_of_all_losses():
    losses = [3.0, 1.0, 4.0, 1.0, 5.0]
    keep = 1 - 1 / SMOOTHING_UPDATES
    weights = [keep**age for age in reversed(range(len(losses)))]
    expected = sum(w * x for w, x in zip(weights, losses, strict=True)) / sum(weights)
    assert smoothed(*losses).value == pytest.approx(expected, rel=1e-12)
    assert math.isnan(SmoothedLoss().value)
    assert smoothed(*[0.7] * 50).value == pytest.approx(0.7, rel=1e-12)


def test_a_target_on_the_loss_waits_until_the_smoothed_loss_is_trusted():
    rules = stopping(Target("loss", at_most=0.5))
    assert after(rules, smoothed(*[0.1] * (TRUSTED_UPDATES - 1))) is None
    assert after(rules, smoothed(*[0.1] * TRUSTED_UPDATES)).status == "target_reached"
    assert after(rules, smoothed(*[0.6] * TRUSTED_UPDATES)) is None


@pytest.mark.parametrize(("metric", "value"), [("updates", 20), ("samples", 640), ("seconds", 4.0)])
def test_a_target_on_a_count_or_on_the_clock_is_judged_at_each_update(metric, value):
    loss = smoothed(1.0)
    assert after(stopping(Target(metric, at_least=value + 0.5)), loss) is None
    ending = after(stopping(Target(metric, at_least=value)), loss)
    assert ending.status == "target_reached"
    assert metric in ending.reason


def test_a_metric_of_nan_never_reaches_a_target():
    for target in (Target("accuracy", at_least=0.5), Target("accuracy", at_most=0.5)):
        assert stopping(target).judge({"accuracy": math.nan}) is None
    assert stopping(Target("accuracy", at_least=0.5)).judge({"other": 1.0}) is None


def test_a_loss_far_above_the_first_ones_has_exploded():
    loss = smoothed(*[1.0] * TRUSTED_UPDATES)
    for _ in range(200):
        loss.add(EXPLOSION_FACTOR)
    assert not loss.exploded
    for _ in range(200):
        loss.add(EXPLOSION_FACTOR * 1.01)
    ending = after(stopping(Target("loss", at_most=1e9)), loss)
    assert ending.status == "diverged"
    assert "learning_rate=0.1" in ending.reason


def test_losses_at_or_below_zero_never_explode():
    loss = smoothed(*[-1.0] * TRUSTED_UPDATES, *[1e6] * 50)
    assert not loss.exploded


def test_the_clock_ends_the_run_before_the_budget_ends_the_request():
    rules = stopping(time_limit_s=10.0, budget_s=5.0)
    assert rules.at_time(seconds=9.9, used_s=4.9) is None
    assert rules.at_time(seconds=9.9, used_s=5.0).status == "completed"
    assert rules.at_time(seconds=10.0, used_s=5.0).status == "out_of_time"
    assert stopping().at_time(seconds=1e9, used_s=1e9) is None
