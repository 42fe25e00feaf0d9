"""`ray job submit` against a head with token authentication: the same job, the same exit code."""

from __future__ import annotations

import json
import os
import re
import secrets
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest
import safetensors.torch

from omnivore_ray import zoo
from omnivore_ray.update.checkpoint import read_state

pytestmark = [
    pytest.mark.slow,
    pytest.mark.cluster,
    pytest.mark.skipif(
        not (Path(sys.executable).parent / "ray").is_file(), reason="Ray's command is not installed"
    ),
]

ROOT = Path(__file__).resolve().parents[2]
BIN = Path(sys.executable).parent
#: ``ray job stop`` kills after 3 seconds otherwise, which is little on a busy machine.
PATIENT = '{"env_vars": {"RAY_JOB_STOP_WAIT_TIME_S": "60"}}'
ACTORS = re.compile(r"ray::(\w*OmnivoreTrainable|ParameterServer|Worker)\b")


@dataclass(frozen=True)
class Head:
    """A Ray head of the tests' own, on the loopback address."""

    process: psutil.Process
    folder: Path
    environment: dict[str, str]
    address: str

    def ray_job(
        self, command: str, *arguments: str, timeout_s: float = 150, **more: str
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [BIN / "ray", "job", command, f"--address={self.address}", *arguments],
            env={**self.environment, **more},
            capture_output=True,
            text=True,
            timeout=timeout_s,
        )

    def status(self, job: str) -> str:
        told = self.ray_job("status", "--log-color=false", job)
        said = told.stdout + told.stderr
        found = re.search(rf"'{job}'.* (succeeded|failed|stopped)", said)
        return found[1] if found else said

    def files_uploaded(self) -> list[str]:
        """Relative paths of what a job's working directory on the cluster holds."""
        (session,) = (self.folder / "r").glob("session_2*")
        packages = session.glob("runtime_resources/working_dir_files/_ray_pkg_*/")
        (package,) = (p for p in packages if (p / "jobs" / "train.py").is_file())
        files = (path for path in package.rglob("*") if path.is_file())
        return [str(path.relative_to(package)) for path in files]

    def actors(self) -> list[str]:
        """The processes of ours that run on the cluster now."""
        names = []
        for process in self.process.children(recursive=True):
            try:
                names += [name for name in process.cmdline()[:1] if ACTORS.match(name)]
            except psutil.Error:
                continue
        return names


def free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


def wait_until(happened: Callable[[], object], what: str, timeout_s: float = 90) -> None:
    deadline_s = time.monotonic() + timeout_s
    while not happened():
        assert time.monotonic() < deadline_s, f"waited {timeout_s} s for {what}"
        time.sleep(0.5)


@pytest.fixture(scope="module")
def head() -> Iterator[Head]:
    # not pytest's folder: the path of a socket ends at 107 characters
    with tempfile.TemporaryDirectory(prefix="oj-", dir="/tmp") as name:
        folder = Path(name)
        (folder / "token").write_text(secrets.token_hex(32))
        (folder / "token").chmod(0o600)
        inherited = {n: v for n, v in os.environ.items() if not n.startswith("RAY_")}
        environment = {
            **inherited,
            "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN_PATH": str(folder / "token"),
        }
        gcs, dashboard, agent, agent_grpc, client, metrics = free_ports(6)
        command = [
            BIN / "ray", "start", "--head", "--block", f"--temp-dir={folder / 'r'}",
            f"--port={gcs}", f"--dashboard-port={dashboard}", "--dashboard-host=127.0.0.1",
            f"--dashboard-agent-listen-port={agent}",
            f"--dashboard-agent-grpc-port={agent_grpc}",
            f"--ray-client-server-port={client}", f"--metrics-export-port={metrics}",
            "--num-cpus=2", "--object-store-memory=300000000", "--disable-usage-stats",
        ]  # fmt: skip
        loopback = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
        with open(folder / "head.log", "w") as log:
            started = subprocess.Popen(
                command, env={**environment, **loopback}, stdout=log, stderr=log
            )
        process = psutil.Process(started.pid)
        head = Head(process, folder, environment, f"http://127.0.0.1:{dashboard}")
        try:
            wait_until(
                lambda: started.poll() is not None or head.ray_job("list").returncode == 0,
                "the head",
            )
            assert started.poll() is None, (folder / "head.log").read_text()
            yield head
        finally:
            family = process.children(recursive=True) if started.poll() is None else []
            started.terminate()
            _, left = psutil.wait_procs([process, *family], timeout=20)
            for straggler in left:
                straggler.kill()
            psutil.wait_procs(left, timeout=10)
            started.wait(10)


def test_who_does_not_have_the_token_is_refused(head):
    told = head.ray_job("list", RAY_AUTH_TOKEN="0" * 64)
    assert told.returncode != 0
    assert "token" in (told.stdout + told.stderr).lower()


def test_a_job_that_reaches_its_target_succeeds_and_ends_with_one_json_object(head):
    submitted = head.ray_job(
        "submit", "--submission-id=reached", f"--working-dir={ROOT}", "--",
        "python", "jobs/train.py", "--devices", "2", "--until", "accuracy>=0.9",
        "--time-limit", "100", "--storage-path", str(head.folder / "runs"),
        # else Ray leaves .git and .venv out by itself, and our own lists would not be tried
        RAY_OVERRIDE_RUNTIME_ENV_DEFAULT_EXCLUDES="",
    )  # fmt: skip
    assert submitted.returncode == 0, submitted.stdout + submitted.stderr
    assert head.status("reached") == "succeeded"
    lines = head.ray_job("logs", "reached").stdout.strip().splitlines()
    line = json.loads(lines[-1])
    assert line["target_reached"] is True
    assert line["metrics"]["accuracy"] >= 0.9
    assert Path(line["path"]).parent == head.folder / "runs"
    uploaded = head.files_uploaded()
    assert "omnivore_ray/cli.py" in uploaded
    unwanted = (".git/", ".venv/", ".ci/", "benchmarks/", "docs/", "notebooks/", "tests/")
    assert not [path for path in uploaded if path.startswith(unwanted) or "__pycache__" in path]


WORKLOAD = """
from torch import nn
from torch.nn import functional as F

from omnivore_ray import Workload, datasets, zoo


class Mine(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))

    def forward(self, images):
        return self.layers(images)


workload = Workload(
    model=Mine, data=datasets.load("digits"), loss=F.cross_entropy,
    metrics={"accuracy": zoo.accuracy},
)
"""


def test_a_job_that_misses_its_target_fails_and_workers_find_the_users_module(head):
    folder = head.folder / "mine"
    folder.mkdir()
    (folder / "its_own_module.py").write_text(WORKLOAD)
    submitted = head.ray_job(
        "submit", "--submission-id=missed", f"--working-dir={folder}", "--",
        "omnivore", "train", "its_own_module:workload", "--json", "--devices", "2",
        "--strategy", "groups=2,learning_rate=0.1", "--until", "accuracy>=1.1",
        "--time-limit", "2", "--storage-path", str(head.folder / "runs"),
    )  # fmt: skip
    assert submitted.returncode != 0, submitted.stdout + submitted.stderr
    assert head.status("missed") == "failed"
    line = json.loads(head.ray_job("logs", "missed").stdout.strip().splitlines()[-1])
    assert line["target_reached"] is False
    assert line["updates"] > 0


def test_a_job_that_is_stopped_leaves_a_checkpoint_that_loads_and_no_actor(head):
    submitted = head.ray_job(
        "submit", "--submission-id=stopped", "--no-wait", f"--working-dir={ROOT}",
        f"--runtime-env-json={PATIENT}", "--",
        "python", "jobs/train.py", "--devices", "2", "--until", "accuracy>=1.1",
        "--strategy", "groups=2,learning_rate=0.1,momentum=0.7", "--time-limit", "250",
        "--storage-path", str(head.folder / "runs"), "--name", "stopped",
    )  # fmt: skip
    assert submitted.returncode == 0, submitted.stdout + submitted.stderr
    trained = re.compile(r"update [1-9]")
    wait_until(lambda: trained.search(head.ray_job("logs", "stopped").stdout), "an update")
    assert len(head.actors()) == 4
    assert head.ray_job("stop", "stopped").returncode == 0
    assert head.status("stopped") == "stopped"
    wait_until(lambda: not head.actors(), "the actors to end", 15)
    assert "OmnivoreTrainer.restore" in head.ray_job("logs", "stopped").stdout
    (checkpoint,) = (head.folder / "runs" / "stopped" / "checkpoints").iterdir()
    assert read_state(checkpoint)[0].version > 0
    tensors = safetensors.torch.load_file(checkpoint / "model.safetensors")
    zoo.lenet().model().load_state_dict(tensors, strict=True)
