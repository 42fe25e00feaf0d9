"""Ours and others' halves of a Ray Tune run fit together in every combination."""

from __future__ import annotations

import math
from typing import Any

import pytest
from ray import tune
from ray.tune.search import ConcurrencyLimiter
from ray.tune.search.optuna import OptunaSearch

from omnivore_ray import Device, Emulation, OmnivoreSearch, OmnivoreTrainable, zoo

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("ray_session")]

DEVICES = [Device(emulate=Emulation(samples_per_s=8000))] * 2


def plain_function(config: dict[str, Any]) -> None:
    """Knows nothing of us: it reports a loss ten times and honours no budget."""
    distance = abs(math.log10(config["learning_rate"] / 0.05))
    for report in range(1, 11):
        tune.report(
            {"score": distance + 0.05 * config["groups"] + 1 / report, "other": config["x"]}
        )


def quiet(path: Any) -> tune.RunConfig:
    return tune.RunConfig(storage_path=str(path), verbose=0)


@pytest.fixture(scope="module")
def trainable(ray_session) -> type[OmnivoreTrainable]:
    return OmnivoreTrainable.configure(zoo.lenet("digits"), DEVICES)


@pytest.mark.parametrize("limited", ["bare", "limiter", "max_concurrent_trials"])
def test_our_search_drives_a_plain_function(tmp_path, limited):
    search: Any = OmnivoreSearch(num_devices=4, metric="score", mode="min", rounds=1)
    if limited == "limiter":
        search = ConcurrencyLimiter(search, max_concurrent=2)
    grid = tune.Tuner(
        tune.with_resources(plain_function, {"CPU": 1}),
        param_space={"x": 7},
        tune_config=tune.TuneConfig(
            search_alg=search,
            num_samples=6,
            max_concurrent_trials=2 if limited == "max_concurrent_trials" else None,
        ),
        run_config=quiet(tmp_path),
    ).fit()
    assert not grid.errors
    assert len(grid) == 6
    assert all(result.metrics["other"] == 7 for result in grid)
    rates = [result.metrics["config"]["learning_rate"] for result in grid]
    assert len(set(rates)) > 2


def test_our_search_drives_our_trainable_in_a_users_tuner(trainable, tmp_path):
    grid = tune.Tuner(
        trainable,
        tune_config=tune.TuneConfig(
            search_alg=OmnivoreSearch(num_devices=2, rounds=0, probe_updates=80),
            num_samples=-1,
            reuse_actors=True,
            metric="loss",
            mode="min",
        ),
        run_config=tune.RunConfig(storage_path=str(tmp_path), verbose=0, stop={"updates": 900}),
    ).fit()
    assert not grid.errors
    kinds = [result.metrics["config"]["kind"] for result in grid]
    assert "probe" in kinds
    assert grid.get_best_result().metrics["loss"] < 1.0


@pytest.mark.parametrize("searcher", ["optuna", "random"])
def test_other_searches_drive_our_trainable(trainable, tmp_path, searcher):
    space = {
        "groups": tune.choice([1, 2]),
        "learning_rate": tune.loguniform(0.01, 0.3),
        "momentum": tune.uniform(0, 0.8),
        "budget_updates": 40,
    }
    grid = tune.Tuner(
        trainable,
        param_space=space,
        tune_config=tune.TuneConfig(
            search_alg=OptunaSearch() if searcher == "optuna" else None,
            num_samples=4,
            max_concurrent_trials=1,
            reuse_actors=True,
            metric="loss",
            mode="min",
        ),
        run_config=quiet(tmp_path),
    ).fit()
    assert not grid.errors
    assert [result.metrics["updates"] for result in grid] == [40] * 4
    pids = {result.metrics["pid"] for result in grid}
    assert len(pids) == 1  # one fleet served them all
    best = grid.get_best_result()
    assert best.metrics["checkpoint_path"]
