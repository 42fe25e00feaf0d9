from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch

import omnivore_ray
from omnivore_ray.errors import OmnivoreError
from omnivore_ray.result import Result
from omnivore_ray.search.fixed import FixedAlgorithm
from omnivore_ray.simulate import run as run_module
from omnivore_ray.simulate.cluster import Head, Network, VirtualCluster, VirtualDevice
from omnivore_ray.simulate.fleet import VirtualFleet
from omnivore_ray.simulate.records import Finished, led_to_the_end
from omnivore_ray.simulate.run import simulate
from omnivore_ray.simulate.service_times import ServiceTimes
from omnivore_ray.strategy import Outcome, Request, Strategy
from omnivore_ray.update.history import COLUMNS
from omnivore_ray.workload import RUN_METRICS, Target

TWO_GROUPS = Strategy(groups=2, learning_rate=0.1, momentum=0.3)


def cluster(num_devices=4, **parts):
    parts.setdefault("service_times", ServiceTimes("exponential"))
    return VirtualCluster.uniform(num_devices, 200.0, **parts)


@pytest.mark.parametrize("strategy", ["auto", TWO_GROUPS])
def test_seeded_runs_repeat_bit_for_bit(regression, accuracy, tmp_path, strategy):
    runs = [
        simulate(
            regression(metrics=accuracy),
            cluster(),
            strategy,
            time_limit_s=20 if strategy == "auto" else 5,
            seed=seed,
            path=tmp_path / name,
        )
        for name, seed in (("a", 3), ("b", 3), ("c", 4))
    ]
    first, again, other = runs
    pd.testing.assert_frame_equal(first.history, again.history, check_exact=True)
    pd.testing.assert_frame_equal(first.decisions, again.decisions, check_exact=True)
    for name, value in first.model().state_dict().items():
        assert torch.equal(value, again.model().state_dict()[name])
    assert first.metrics == again.metrics
    assert not np.array_equal(first.history["time_s"][:50], other.history["time_s"][:50])


def test_a_result_is_that_of_any_run(regression, accuracy, tmp_path):
    workload = regression(metrics=accuracy)
    until = Target("accuracy", at_least=0.9)
    result = simulate(
        workload, cluster(), TWO_GROUPS, until=until, time_limit_s=60, path=tmp_path / "run"
    )
    assert result.target_reached
    assert set(RUN_METRICS) | {"accuracy"} == set(result.metrics)
    assert tuple(result.history) == (*COLUMNS, "request", "kept")
    assert result.strategy == TWO_GROUPS
    assert len(result.decisions) == 1
    read = Result.from_path(tmp_path / "run", workload)
    pd.testing.assert_frame_equal(read.history, result.history)
    outputs = read.model()(torch.from_numpy(workload.data.validation[0]))
    targets = torch.from_numpy(workload.data.validation[1])
    assert accuracy["accuracy"](outputs, targets).item() == pytest.approx(
        result.metrics["accuracy"]
    )
    settings = json.loads((tmp_path / "run" / "omnivore.json").read_text())["settings"]
    assert "virtual" in settings["simulated"]


def test_auto_searches_and_then_trains_on_what_it_found(regression, tmp_path):
    result = simulate(regression(), cluster(), time_limit_s=40, path=tmp_path / "run")
    kinds = list(result.decisions["kind"])
    assert kinds[0] == "probe" and "train" in kinds
    assert result.metrics["seconds"] == pytest.approx(40, abs=0.5)
    assert result.history["request"].nunique() == len(kinds)
    kept = result.history[result.history["kept"]]
    assert kept["version"].tolist() == list(range(1, len(kept) + 1))
    assert result.history["time_s"].is_monotonic_increasing
    assert result.checkpoint.is_dir()
    result.model()


class TrainsThenProbes(FixedAlgorithm):
    """A search whose last probe the time limit cuts short."""

    def _plan(self):
        outcome = yield Request(kind="train", strategy=TWO_GROUPS, budget_updates=5)
        path = outcome.checkpoint_path
        yield Request(kind="probe", strategy=TWO_GROUPS, resume_from=path)


def test_a_probe_cut_short_leaves_the_state_before_it(regression, tmp_path, monkeypatch):
    arguments = {"time_limit_s": 9.0, "seed": 1}
    monkeypatch.setattr(run_module, "FixedAlgorithm", TrainsThenProbes)
    result = simulate(regression(), cluster(), TWO_GROUPS, **arguments, path=tmp_path / "searched")
    assert result.metrics["updates"] == result.history["kept"].sum() == 5
    assert result.metrics["seconds"] == pytest.approx(9.0, abs=0.5)
    monkeypatch.undo()
    fleet = VirtualFleet(regression(), cluster(), seed=1)
    fleet.run(Request(kind="train", strategy=TWO_GROUPS, budget_updates=5), "a")
    for name, value in result.model().state_dict().items():
        assert torch.equal(value, fleet.parameters.state_dict()[name])


def test_timing_only_knows_seconds_and_staleness_but_no_loss(regression, tmp_path):
    network = Network(bytes_per_s=1e6)
    result = simulate(
        regression(),
        cluster(network=network, head=Head(batch_s=0.01)),
        TWO_GROUPS,
        until=Target("updates", at_least=50),
        timing_only=True,
        path=tmp_path / "run",
    )
    assert result.target_reached
    assert len(result.history) == 50
    assert tuple(result.history) == (*COLUMNS, "request", "kept")
    assert result.history["loss"].isna().all()
    assert result.history["staleness"].mean() == pytest.approx(1, abs=0.2)
    assert set(result.history["bytes"]) == {2 * 2 * 1216}  # two members, down and up
    assert result.metrics["seconds"] == result.history["time_s"].iloc[-1]
    assert result.checkpoint is None
    with pytest.raises(OmnivoreError, match="no checkpoint"):
        result.model()


@pytest.mark.parametrize(
    ("until", "time_limit_s", "updates", "reached"),
    [
        (Target("updates", at_least=3), None, 3, True),
        (Target("samples", at_least=40), None, 2, True),
        (Target("seconds", at_least=0.9), None, 5, True),
        (Target("updates", at_least=99), 0.9, 5, False),
        (None, 0.9, 5, False),
    ],
)
def test_timing_runs_end_by_target_or_time(
    regression, tmp_path, until, time_limit_s, updates, reached
):
    result = simulate(
        regression(rows=32 * 10),
        VirtualCluster.uniform(1, 200.0),
        Strategy(learning_rate=0.1),
        until=until,
        time_limit_s=time_limit_s,
        timing_only=True,
        path=tmp_path / "run",
    )
    assert (len(result.history), result.target_reached) == (updates, reached)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"strategy": Strategy(groups=5, learning_rate=0.1)}, "groups=5 but there are 4 devices"),
        ({"strategy": "fast"}, "strategy='fast'"),
        ({"cluster": 4}, "cluster=4"),
        ({"workload": None}, "workload=None"),
        ({"time_limit_s": None}, "until= or time_limit_s="),
        ({"time_limit_s": 0.0}, "time_limit_s=0.0"),
        ({"evaluate_every_s": -1}, "evaluate_every_s=-1"),
        ({"until": Target("precision", at_least=1)}, "unknown metric 'precision'"),
        ({"until": "loss"}, "until='loss'"),
        ({"seed": -1}, "seed=-1"),
        ({"timing_only": True}, "give a Strategy"),
        (
            {"timing_only": True, "strategy": TWO_GROUPS, "until": Target("loss", at_most=0.1)},
            "timing_only=True give updates",
        ),
        ({"cluster": cluster(head=Head(batch_s=0.1))}, "head=None"),
        ({"cluster": cluster(33), "strategy": "auto"}, "batch_size=32 is below the 33 devices"),
        (
            {
                "timing_only": True,
                "strategy": Strategy(learning_rate=0.1),
                "cluster": VirtualCluster(
                    devices=[VirtualDevice(samples_per_s=1.0, fails_at_s=3.0)]
                ),
            },
            r"devices\[0\].fails_at_s=3.0",
        ),
    ],
)
def test_bad_input_is_refused_by_name(regression, tmp_path, changes, words):
    arguments = {"workload": regression(), "cluster": cluster(), "time_limit_s": 1.0, **changes}
    with pytest.raises(ValueError, match=words):
        simulate(**arguments, path=tmp_path / "run")


def test_a_target_that_would_never_be_measured_is_refused(regression, accuracy, tmp_path):
    whole = regression(metrics=accuracy)
    workload = replace(whole, data=whole.data.train)
    until = Target("accuracy", at_least=0.9)
    with pytest.raises(ValueError, match=r"validation data and Workload\.data has none"):
        simulate(workload, cluster(), TWO_GROUPS, until=until, path=tmp_path / "run")


def test_a_run_is_not_overwritten(regression, tmp_path):
    def run():
        return simulate(
            regression(), cluster(), TWO_GROUPS, time_limit_s=0.5, path=tmp_path / "run"
        )

    run()
    with pytest.raises(ValueError, match="holds a run already"):
        run()


def test_a_fixed_strategy_that_diverges_is_an_error(regression, tmp_path):
    wild = Strategy(groups=2, learning_rate=1e6)
    with pytest.raises(OmnivoreError, match="diverged"):
        simulate(regression(), cluster(), wild, time_limit_s=50, path=tmp_path / "run")


def test_the_watch_sees_the_run_go_on(regression, tmp_path):
    seen = []
    simulate(
        regression(),
        cluster(),
        TWO_GROUPS,
        time_limit_s=1,
        path=tmp_path / "run",
        watch=seen.append,
    )
    assert seen and set(RUN_METRICS) <= set(seen[0])


def test_the_room_is_its_own_function(regression, tmp_path):
    from omnivore_ray import simulate as room

    assert room is omnivore_ray.simulate
    result = room(regression(), cluster(), TWO_GROUPS, time_limit_s=0.5, path=tmp_path / "run")
    assert isinstance(result, Result)


def finished(name, kind, resume_from, status="completed"):
    request = Request(kind=kind, strategy=TWO_GROUPS, resume_from=resume_from)
    return Finished(name, request, Outcome(status=status), None, None, {})


@pytest.mark.parametrize(
    ("last", "kept"),
    [
        (finished("d", "train", "c"), [0, 2, 3]),
        (finished("d", "probe", "c", "out_of_time"), [0, 2]),
        (finished("d", "probe", "c", "target_reached"), [0, 2, 3]),
        (finished("d", "probe", None, "out_of_time"), [3]),
    ],
)
def test_what_led_to_the_final_state(last, kept):
    before = [
        finished("a", "probe", None),
        finished("b", "probe", None),
        finished("c", "train", "a"),
    ]
    assert led_to_the_end([*before, last]) == kept
