import ipaddress
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import psutil
import pytest
import ray

from omnivore_ray.cluster import local_ray
from omnivore_ray.cluster.local_ray import attach_or_start
from omnivore_ray.errors import OmnivoreError

LISTEN = "0A"


@ray.remote
class Adder:
    def add(self, array):
        return float(array.sum())


def listening_addresses(pids):
    """The addresses on which sockets of these processes listen, from /proc."""
    inodes = set()
    for pid in pids:
        for handle in Path(f"/proc/{pid}/fd").iterdir():
            try:
                inodes.add(os.readlink(handle))
            except FileNotFoundError:
                continue
    addresses = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            _, local, _, state, *_, inode = line.split()[:10]
            if state == LISTEN and f"socket:[{inode}]" in inodes:
                addresses.add(decoded(local.partition(":")[0]))
    return addresses


def decoded(text):
    """The kernel's hexadecimal: 32-bit words, each with its lowest byte first."""
    words = [bytes.fromhex(text[at : at + 8])[::-1] for at in range(0, len(text), 8)]
    address = ipaddress.ip_address(b"".join(words))
    return getattr(address, "ipv4_mapped", None) or address


def test_every_socket_of_our_own_ray_listens_on_loopback(ray_session):
    adder = Adder.remote()
    assert ray.get(adder.add.remote(np.ones(100_000))) == 100_000
    processes = [psutil.Process(), *psutil.Process().children(recursive=True)]
    assert any("Adder" in process.cmdline()[0] for process in processes if process.cmdline())
    addresses = listening_addresses(process.pid for process in processes)
    assert addresses
    assert all(address.is_loopback for address in addresses), addresses
    ray.kill(adder)


def test_other_users_of_the_machine_cannot_reach_its_files(ray_session):
    session = Path(ray._private.worker._global_node.get_session_dir_path())
    assert session.parents[1].name.startswith("omnivore-")
    assert session.parents[1].stat().st_mode & 0o077 == 0


def test_the_kernels_addresses_are_decoded():
    assert decoded("0100007F") == ipaddress.ip_address("127.0.0.1")
    assert decoded("0000000000000000FFFF00000100007F") == ipaddress.ip_address("127.0.0.1")
    assert decoded("00000000000000000000000001000000").is_loopback
    assert not decoded("0" * 8).is_loopback
    assert not decoded("0" * 32).is_loopback


def test_a_session_that_is_there_is_used_and_left(ray_session):
    before = ray.get_runtime_context().get_job_id()
    with attach_or_start(num_cpus=1, address="203.0.113.1:6379"):
        assert ray.get_runtime_context().get_job_id() == before
    assert ray.get_runtime_context().get_job_id() == before


SCRIPT = """
import json, os, signal, sys, threading, time

import psutil
import ray

from omnivore_ray.cluster.local_ray import attach_or_start

def leave(how):
    if how == "exception":
        raise RuntimeError("the block's own")
    if how == "interrupt":
        signal.raise_signal(signal.SIGINT)

how, interrupt_after_s = sys.argv[1], float(sys.argv[2])
if interrupt_after_s:
    threading.Timer(interrupt_after_s, os.kill, (os.getpid(), signal.SIGINT)).start()
environment = dict(os.environ)
raised, lived = None, 0
try:
    with attach_or_start():
        answer = ray.get(ray.remote(lambda: 42).remote())
        lived = len(psutil.Process().children(recursive=True))
        leave(how)
except BaseException as error:
    raised = type(error).__name__
here = os.getcwd()
left = []
for process in psutil.process_iter():
    try:
        if process.pid != os.getpid() and process.cwd() == here:
            left.append(process.cmdline())
    except psutil.Error:
        pass
print(json.dumps({
    "raised": raised,
    "lived": lived,
    "initialized": ray.is_initialized(),
    "processes": left,
    "files": os.listdir(os.environ["TMPDIR"]),
    "environment": dict(os.environ) == environment,
}))
"""


@pytest.fixture
def folder():
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        yield Path(name)


def run_script(folder, how, interrupt_after_s=0.0, **variables):
    """What the script saw; all of its processes have ``folder`` as working directory."""
    temporary = folder / "t"
    temporary.mkdir()
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    finished = subprocess.run(
        [sys.executable, "-c", SCRIPT, how, str(interrupt_after_s)],
        cwd=folder,
        env={**environment, **variables, "TMPDIR": str(temporary)},
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    return json.loads(finished.stdout.splitlines()[-1])


@pytest.mark.parametrize(
    ("how", "raised"),
    [
        ("exception", "RuntimeError"),
        pytest.param("success", None, marks=pytest.mark.slow),
        pytest.param("interrupt", "KeyboardInterrupt", marks=pytest.mark.slow),
    ],
)
def test_nothing_is_left_however_the_block_ends(folder, how, raised):
    seen = run_script(folder, how)
    assert seen["raised"] == raised
    assert seen["lived"] > 3
    assert not seen["initialized"]
    assert seen["processes"] == []
    assert seen["files"] == []
    assert seen["environment"]


@pytest.mark.slow
@pytest.mark.parametrize("after_s", [1.2, 2.0, 2.8, 3.6])
def test_nothing_is_left_when_the_start_is_interrupted(folder, after_s):
    seen = run_script(folder, "interrupt", after_s)
    assert seen["raised"] == "KeyboardInterrupt"
    assert not seen["initialized"]
    assert seen["processes"] == []
    assert seen["files"] == []
    assert seen["environment"]


def test_the_cluster_that_ray_address_names_is_used_and_left_running(ray_session, folder):
    seen = run_script(
        folder,
        "success",
        RAY_ADDRESS=ray.get_runtime_context().gcs_address,
        RAY_AUTH_MODE="token",
        RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER="0",
    )
    assert seen["raised"] is None
    assert seen["lived"] == 0
    assert not seen["initialized"]
    assert ray.get(ray.remote(lambda: 42).remote()) == 42


def test_an_address_where_no_ray_answers_is_an_error_at_once(monkeypatch):
    monkeypatch.setattr(local_ray.ray, "is_initialized", lambda: False)
    where = attach_or_start(address="127.0.0.1:1")
    with pytest.raises(OmnivoreError, match=r"no Ray answers at .*:1 .*unset RAY_ADDRESS"), where:
        pass
