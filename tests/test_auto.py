"""strategy="auto": the optimizer drives the fleet, and a killed driver costs nothing it knew."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from ray import tune

from omnivore_ray import OmnivoreTrainer, Result, Target, zoo

ROOT = Path(__file__).resolve().parent.parent

pytestmark = pytest.mark.slow


def check_main_line(result: Result) -> None:
    """The updates that led to the final state are numbered 1..n, whatever probes were lost."""
    kept = result.history[result.history["kept"]]
    assert kept["version"].tolist() == list(range(1, len(kept) + 1))
    assert result.metrics["updates"] == len(kept)
    assert result.metrics["samples"] == kept["samples"].sum()


def test_auto_needs_no_hyper_parameters(ray_session, tmp_path):
    workload = zoo.lenet("digits")
    result = OmnivoreTrainer(
        workload,
        devices=2,
        until=Target("accuracy", at_least=0.95),
        time_limit_s=150,
        run_config=tune.RunConfig(storage_path=str(tmp_path)),
    ).fit()
    assert result.target_reached
    check_main_line(result)
    decisions = result.decisions
    assert decisions["kind"].iloc[0] == "probe"
    assert decisions["kind"].iloc[-1] == "train"
    for column in (
        "round",
        "groups",
        "updates",
        "seconds",
        "score",
        "verdict",
        "reason",
        "predicted_seconds_per_update",
        "measured_seconds_per_update",
    ):
        assert column in decisions
    assert decisions["reason"].str.len().min() > 5
    assert not (result.path / "checkpoints" / "nothing").exists()


def test_a_killed_driver_goes_on_where_it_was(ray_session, tmp_path):
    """SIGKILL after some probes: they are not run again, and the same phase goes on."""
    command = [
        sys.executable, "jobs/train.py", "--devices=2", "--until=accuracy>=0.95",
        "--time-limit=200", "--storage-path", str(tmp_path), "--name=run",
    ]  # fmt: skip
    ended = 0
    with subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        for line in process.stderr:
            ended += line.startswith("probe") and "| update 0 " not in line
            if ended >= 6:
                break
        children = psutil.Process(process.pid).children(recursive=True)
        # Ray's own agents notice the death of their raylet only after a minute or so
        children = [child for child in children if not child.name().endswith("Agent")]
        os.kill(process.pid, signal.SIGKILL)
    _, alive = psutil.wait_procs(children, timeout=30)
    assert not [child.name() for child in alive if child.status() != psutil.STATUS_ZOMBIE]
    before = sorted(place.name for place in (tmp_path / "run" / "checkpoints").iterdir())
    assert len(before) >= 5

    result = OmnivoreTrainer.restore(tmp_path / "run", zoo.lenet("digits")).fit()
    assert result.target_reached
    check_main_line(result)
    requests = [place.name for place in (result.path / "checkpoints").iterdir()]
    assert set(before) <= set(requests)
    assert len(result.decisions) == len(requests)  # none lost, none twice
    asked = result.decisions[["kind", "groups", "learning_rate", "momentum", "resumed_from"]]
    timing = result.decisions["reason"].str.startswith("timing run").sum()
    assert not asked.iloc[timing:].astype(str).duplicated().any()
    assert timing <= 3  # no second cold start
