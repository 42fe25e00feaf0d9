"""Which Ray a run uses: the one already there, the one it is told of, or one of its own.

A Ray of our own listens on the loopback address alone and leaves nothing behind: no process, no
socket, no folder.
"""

from __future__ import annotations

import logging
import os
import shutil
import signal
import socket
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType

import psutil
import ray
from ray._common.network_utils import parse_address  # type: ignore[attr-defined]
from ray._private import ray_constants, services
from ray._private.utils import get_num_cpus

from omnivore_ray.errors import OmnivoreError

_OBJECT_STORE_BYTES = 2 * 10**9
_OBJECT_STORE_SHARE = 0.3
_STOP_TIMEOUT_S = 10.0
_ANSWER_TIMEOUT_S = 5.0

#: A socket's path ends at 107 characters (macOS: 103); Ray's are up to 66 longer than its folder,
#: which is 20 longer than the folder it is made in.
_LONGEST_PARENT = 17


@contextmanager
def attach_or_start(*, num_cpus: int | None = None, address: str | None = None) -> Iterator[None]:
    """Holds a Ray session while the ``with`` block runs.

    A session that exists already is used as it is and left as it was. Otherwise ``address``, or
    RAY_ADDRESS as ``ray job submit`` sets it, names the cluster to connect to. With neither, a
    Ray is started on this machine, and stopped again whichever way the block is left.

    Args:
        num_cpus: CPUs a Ray of our own offers; by default as many as this process may use, and
            at least 2. It has no meaning for a Ray that is there already.
        address: A cluster to connect to; "local" starts one whatever RAY_ADDRESS says.

    Raises:
        OmnivoreError: No cluster answers at the address.
    """
    if ray.is_initialized():
        yield
        return
    address = address or os.environ.get("RAY_ADDRESS") or "local"
    if address == "local":
        with _own_ray(num_cpus):
            yield
        return
    _check_answers(address)
    try:
        with _interrupts_held():
            ray.init(address, log_to_driver=False, logging_level=logging.ERROR)
        yield
    finally:
        with _interrupts_held():
            ray.shutdown()


def _check_answers(address: str) -> None:
    """Finds out in seconds what Ray would keep trying for minutes."""
    if "://" in address:
        return
    dialled = services.canonicalize_bootstrap_address(address)
    if dialled is None:
        raise OmnivoreError(
            f"no Ray is running that address={address!r} could mean; start one with "
            "`ray start --head`, or give address='local'"
        )
    host, port = parse_address(dialled)
    try:
        socket.create_connection((host, int(port)), timeout=_ANSWER_TIMEOUT_S).close()
    except OSError as error:
        raise OmnivoreError(
            f"no Ray answers at {dialled} (address={address!r}): {error}; start one, or unset "
            "RAY_ADDRESS to run on this machine alone"
        ) from error


@contextmanager
def _own_ray(num_cpus: int | None) -> Iterator[None]:
    parent = tempfile.gettempdir()
    folder = tempfile.mkdtemp(
        prefix="omnivore-", dir=parent if len(os.fsencode(parent)) <= _LONGEST_PARENT else "/tmp"
    )
    try:
        with _interrupts_held(), _bound_to_loopback():
            ray.init(
                "local",
                num_cpus=num_cpus or max(2, int(get_num_cpus())),
                object_store_memory=min(
                    _OBJECT_STORE_BYTES,
                    int(_OBJECT_STORE_SHARE * psutil.virtual_memory().total),
                ),
                include_dashboard=False,
                log_to_driver=False,
                logging_level=logging.ERROR,
                # Ray opens its folder to every user of the machine; the one around it stays shut.
                _temp_dir=os.path.join(folder, "r"),
            )
        yield
    finally:
        with _interrupts_held():
            _stop(folder)


@contextmanager
def _bound_to_loopback() -> Iterator[None]:
    """Makes a Ray that is started inside take 127.0.0.1 for its address, and listen there alone.

    It is what Ray does by default on macOS and Windows. The processes it starts read the variable
    from their environment; this one read it when ray was imported, so the constant it became,
    which Ray looks up whenever it needs the node's address, is set too. Whatever Ray adds to the
    environment of this process is taken back with it.
    """
    environment = dict(os.environ)
    enabled = ray_constants.ENABLE_RAY_CLUSTER
    os.environ[ray_constants.ENABLE_RAY_CLUSTERS_ENV_VAR] = "0"
    ray_constants.ENABLE_RAY_CLUSTER = False
    try:
        yield
    finally:
        ray_constants.ENABLE_RAY_CLUSTER = enabled
        for name in os.environ.keys() - environment.keys():
            del os.environ[name]
        os.environ.update(environment)


@contextmanager
def _interrupts_held() -> Iterator[None]:
    """Puts off the first Ctrl-C, of which Ray would crash here, to the end of the block."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    held: list[int] = []

    def hold(number: int, frame: FrameType | None) -> None:
        if held:
            raise KeyboardInterrupt
        held.append(number)

    handler = signal.signal(signal.SIGINT, hold)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
    if held:
        signal.raise_signal(signal.SIGINT)


def _stop(folder: str) -> None:
    """Shuts down the Ray whose files lie in ``folder``, and waits until all of it is gone.

    Ray stops the servers it started, and their workers end by themselves a little later. Servers
    of a start that failed half-way are known only by the folder in their command lines.
    """
    servers = [child for child in psutil.Process().children() if _names(child, folder)]
    processes = [*servers, *(below for server in servers for below in _descendants(server))]
    try:
        ray.shutdown(wait_for_processes=True)
    finally:
        for server in servers:
            with suppress(psutil.Error):
                server.terminate()
        _, remaining = psutil.wait_procs(processes, timeout=_STOP_TIMEOUT_S)
        for process in remaining:
            with suppress(psutil.Error):
                process.kill()
        psutil.wait_procs(remaining, timeout=_STOP_TIMEOUT_S)
        shutil.rmtree(folder, ignore_errors=True)


def _names(process: psutil.Process, folder: str) -> bool:
    with suppress(psutil.Error):
        return any(folder in argument for argument in process.cmdline())
    return False


def _descendants(process: psutil.Process) -> list[psutil.Process]:
    with suppress(psutil.Error):
        return list(process.children(recursive=True))
    return []
