"""One call trains: the engine end to end, on the tests' own Ray."""

from __future__ import annotations

import json
from dataclasses import replace

import pandas as pd
import pytest
import safetensors.torch
import torch
from ray import tune

from omnivore_ray import (
    Device,
    Emulation,
    OmnivoreError,
    OmnivoreTrainer,
    Result,
    Strategy,
    Target,
    zoo,
)
from omnivore_ray.update.history import COLUMNS
from omnivore_ray.workload import RUN_METRICS

STRATEGY = Strategy(groups=2, learning_rate=0.1, momentum=0.7)


@pytest.fixture(scope="module")
def digits():
    return zoo.lenet("digits")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"workload": 3}, "workload=3"),
        ({"strategy": "fast"}, "strategy='fast'"),
        ({"devices": 0}, "devices=0"),
        ({"until": "loss<=1"}, "until='loss<=1'"),
        ({"until": Target("speed", at_least=1)}, "unknown metric 'speed'"),
        ({"until": None}, "give until= or time_limit_s="),
        ({"time_limit_s": 0}, "time_limit_s=0"),
        ({"seed": -1}, "seed=-1"),
        ({"evaluate_every_s": -1}, "evaluate_every_s=-1"),
        ({"checkpoint_every_s": "often"}, "checkpoint_every_s='often'"),
    ],
)
def test_illegal_arguments_are_named_before_anything_starts(digits, arguments, said):
    given = {"workload": digits, "strategy": STRATEGY, "until": Target("loss", at_most=1)}
    given |= arguments
    with pytest.raises(ValueError, match=said):
        OmnivoreTrainer(given.pop("workload"), **given)


@pytest.fixture(scope="module")
def result(ray_session, digits, tmp_path_factory) -> Result:
    folder = tmp_path_factory.mktemp("runs")
    return OmnivoreTrainer(
        digits,
        strategy=STRATEGY,
        devices=2,
        until=Target("accuracy", at_least=0.9),
        time_limit_s=90,
        evaluate_every_s=0.5,
        run_config=tune.RunConfig(name="digits", storage_path=str(folder)),
    ).fit()


def test_the_target_is_reached_by_the_model_that_is_returned(result, digits):
    assert result.target_reached
    assert result.metrics["accuracy"] >= 0.9
    inputs, targets = digits.data.validation.take(torch.arange(360).numpy())
    with torch.no_grad():
        accuracy = zoo.accuracy(result.model()(inputs), targets)
    assert float(accuracy) == pytest.approx(result.metrics["accuracy"], abs=1e-6)


def test_history_has_one_row_per_update_and_the_metrics_follow_from_it(result):
    history = result.history
    assert list(history.columns) == [*COLUMNS, "request", "kept"]
    assert history["version"].tolist() == list(range(1, len(history) + 1))
    assert set(RUN_METRICS) <= set(result.metrics)
    assert result.metrics["updates"] == len(history)
    assert result.metrics["samples"] == history["samples"].sum()
    assert result.metrics["staleness_mean"] == pytest.approx(history["staleness"].mean())
    assert (history["time_s"].diff().dropna() >= 0).all()
    assert (history["staleness"] == history["version"] - 1 - history["version_read"]).all()
    assert result.strategy == STRATEGY
    assert result.decisions[["kind", "groups"]].values.tolist() == [["train", 2]]


def test_a_checkpoint_is_a_plain_folder_that_loads_without_us(result, digits):
    names = {file.name for file in result.checkpoint.iterdir()}
    assert {"model.safetensors", "optimizer.safetensors", "state.json"} <= names
    module = digits.model()
    module.load_state_dict(safetensors.torch.load_file(result.checkpoint / "model.safetensors"))
    assert json.loads((result.checkpoint / "state.json").read_text())["state"]["version"] == len(
        result.history
    )


def test_a_result_is_read_back_from_its_folder(result):
    again = Result.from_path(result.path)
    pd.testing.assert_frame_equal(again.history, result.history)
    assert again.metrics == result.metrics
    assert again.strategy == result.strategy
    with pytest.raises(OmnivoreError, match="no workload; use Result"):
        again.model()
    with pytest.raises(OmnivoreError, match="not the folder of a finished run"):
        Result.from_path(result.path / "checkpoints")


def test_a_diverging_strategy_is_named(ray_session, digits, tmp_path):
    trainer = OmnivoreTrainer(
        digits,
        strategy=Strategy(groups=1, learning_rate=1000.0),
        devices=[Device(emulate=Emulation(samples_per_s=1e6))],
        time_limit_s=30,
        run_config=tune.RunConfig(storage_path=str(tmp_path)),
    )
    with pytest.raises(OmnivoreError, match=r"learning_rate=1000.*diverged"):
        trainer.fit()


def test_what_cannot_run_here_is_refused_at_once(ray_session, digits, tmp_path):
    config = tune.RunConfig(storage_path=str(tmp_path))
    many = OmnivoreTrainer(digits, strategy=STRATEGY, devices=99, time_limit_s=9, run_config=config)
    with pytest.raises(OmnivoreError, match="ask for 99 CPUs and the cluster has 8"):
        many.fit()
    groups = OmnivoreTrainer(
        digits, strategy=replace(STRATEGY, groups=3), devices=2, time_limit_s=9, run_config=config
    )
    with pytest.raises(ValueError, match="groups=3 but there are 2 devices"):
        groups.fit()
    small = OmnivoreTrainer(
        replace(digits, batch_size=1), strategy=replace(STRATEGY, groups=1), devices=2,
        time_limit_s=9, run_config=config,
    )  # fmt: skip
    with pytest.raises(ValueError, match="batch_size=1 is below the 2 devices"):
        small.fit()
    blind = OmnivoreTrainer(
        zoo.lenet("random"), strategy=STRATEGY, devices=2, until=Target("accuracy", at_least=0.9),
        run_config=config,
    )  # fmt: skip
    with pytest.raises(ValueError, match=r"accuracy.*measured on validation data .* has none"):
        blind.fit()
    remote = OmnivoreTrainer(
        digits, strategy=STRATEGY, devices=2, time_limit_s=9,
        run_config=tune.RunConfig(storage_path="s3://bucket/runs"),
    )  # fmt: skip
    with pytest.raises(ValueError, match="storage_path"):
        remote.fit()
