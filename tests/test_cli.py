from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from click.testing import CliRunner

from omnivore_ray import zoo
from omnivore_ray.cli import load_workload, main
from omnivore_ray.update.checkpoint import is_checkpoint, read_state

ROOT = Path(__file__).resolve().parent.parent


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["zoo:lenet", "--until", "acuracy>=1"], "unknown metric 'acuracy'"),
        (["zoo:lenet", "--until", "accuracy"], "write metric>=number"),
        (["zoo:lenet"], "give until= or time_limit_s="),
        (["zoo:lenet", "--strategy", "fast", "--time-limit", "5"], "strategy='fast'"),
        (["zoo:lenet", "--devices", "none", "--time-limit", "5"], "devices='none'"),
        (["zoo:nothing", "--time-limit", "5"], "has no attribute 'nothing'"),
        (["no_such_module:x", "--time-limit", "5"], "No module named 'no_such_module'"),
        (["zoo", "--time-limit", "5"], "write MODULE:WORKLOAD"),
        (["os:getcwd", "--time-limit", "5"], "is a str; name a Workload"),
    ],
)
def test_illegal_arguments_end_with_a_sentence_and_code_2(arguments, said):
    result = CliRunner().invoke(main, ["train", *arguments])
    assert result.exit_code == 2, result.output
    assert said in result.output
    assert "Traceback" not in result.output


def test_workloads_are_found_in_the_current_folder(tmp_path, monkeypatch):
    (tmp_path / "its_own.py").write_text("from omnivore_ray import zoo\nmine = zoo.lenet()\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setenv("PYTHONPATH", "/elsewhere")
    assert load_workload("its_own:mine").name == "lenet"
    assert load_workload("zoo:lenet").batch_size == zoo.lenet().batch_size
    assert os.environ["PYTHONPATH"].split(os.pathsep) == [str(tmp_path), "/elsewhere"]


@pytest.mark.slow
def test_the_main_job_reaches_its_target(tmp_path):
    """Plain python, a Ray of its own: table, then one JSON object as the last line."""
    # a machine shared with others may be slow: the job's own limit is not what is tested here
    command = [sys.executable, "jobs/train.py", "--time-limit=240", f"--storage-path={tmp_path}"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=290)
    assert done.returncode == 0, done.stderr
    line = json.loads(done.stdout.splitlines()[-1])
    assert set(line) == {
        "target_reached", "metrics", "updates", "samples", "seconds", "strategy", "path",
    }  # fmt: skip
    assert line["target_reached"] is True
    assert line["metrics"]["accuracy"] >= 0.97
    assert "target reached" in done.stdout
    for word in ("update", "samples/s", "loss", "accuracy", "staleness", "s left"):
        assert word in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_leaves_a_snapshot_and_nothing_else(tmp_path, number):
    command = [
        sys.executable, "jobs/train.py", "--until=accuracy>=1.1", "--time-limit=200",
        "--storage-path", str(tmp_path), "--name=run",
        "--strategy=groups=2,learning_rate=0.1,momentum=0.7", "--devices=2",
    ]  # fmt: skip
    with subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        for line in process.stderr:  # ends when the process does
            if "update" in line and "update 0 " not in line:
                break
        children = psutil.Process(process.pid).children(recursive=True)
        assert children
        time.sleep(1.0)
        process.send_signal(number)
        said = process.stderr.read()
        assert process.wait(60) == 130, said
    assert "OmnivoreTrainer.restore" in said
    _, alive = psutil.wait_procs(children, timeout=15)
    assert not [child for child in alive if child.status() != psutil.STATUS_ZOMBIE]
    (checkpoint,) = (tmp_path / "run" / "checkpoints").iterdir()
    assert is_checkpoint(checkpoint)
    assert read_state(checkpoint)[0].version > 0
