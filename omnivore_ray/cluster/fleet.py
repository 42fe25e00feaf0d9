"""Fleet: the workers and the parameter server of one run, as a plain object.

Started once; each request only regroups them. Divergence, a lost device or a stall are outcomes;
what raises is the user's own exception and what ends the run (a lost server).
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayActorError, RayError, RayTaskError
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from omnivore_ray.cluster.devices import Device, device_names, device_speeds
from omnivore_ray.cluster.parameter_server import ParameterServer
from omnivore_ray.cluster.pickling import check_picklable
from omnivore_ray.cluster.worker import Worker
from omnivore_ray.data.datasets import as_split
from omnivore_ray.errors import OmnivoreError
from omnivore_ray.strategy import Outcome, Request, Strategy
from omnivore_ray.update.groups import check_groups, deal_devices
from omnivore_ray.workload import Target, Workload

#: Actors that are not up after this long will not come up.
_START_TIMEOUT_S = 120.0
#: The server answers bookkeeping calls within this, however large the model.
_ANSWER_TIMEOUT_S = 120.0


@dataclass(frozen=True, kw_only=True)
class FleetSpec:
    """All that a fleet is made from; it travels to where the fleet is started.

    Attributes:
        workload: Its data replaced by the references below.
        train: Reference to the training source.
        validation: Reference to the validation source, or None.
        num_rows: Rows of the training source.
        num_validation_rows: Rows of the validation source, or 0.
        devices: One worker each.
        seed: Of the model, the row order, and dropout.
        target: The run's target, or None.
        time_limit_s: The run's end on the run's clock, or None.
        evaluate_every_s: Seconds between validations.
    """

    workload: Workload
    train: Any
    validation: Any
    num_rows: int
    num_validation_rows: int
    devices: tuple[Device, ...]
    seed: int = 0
    target: Target | None = None
    time_limit_s: float | None = None
    evaluate_every_s: float = 2.0

    @classmethod
    def of(cls, workload: Workload, devices: Sequence[Device], **options: Any) -> FleetSpec:
        """Checks the workload and puts its data in the object store, once.

        Raises:
            ValueError: The workload cannot be sent to the workers, or its data is none.
        """
        split = as_split(workload.data)
        light = replace(workload, data="in the object store")
        for field in ("model", "loss", "metrics", "optimizer"):
            check_picklable(getattr(light, field), f"Workload.{field}")
        check_picklable(split.train, "Workload.data")
        validation = None if split.validation is None else ray.put(split.validation)
        return cls(
            workload=light,
            train=ray.put(split.train),
            validation=validation,
            num_rows=len(split.train),
            num_validation_rows=0 if split.validation is None else len(split.validation),
            devices=tuple(devices),
            **options,
        )

    def check(self, strategy: Strategy) -> None:
        """Refuses a strategy that this fleet cannot run.

        Raises:
            ValueError: More groups than devices, or a batch smaller than a group.
        """
        check_groups(device_speeds(self.devices), strategy.groups, self.workload.batch_size)


@dataclass(frozen=True, kw_only=True, slots=True)
class Progress:
    """Where the running request is.

    Attributes:
        ended: Whether `Fleet.finish` may be called.
        metrics: Run metrics and the last validation metrics.
    """

    ended: bool
    metrics: dict[str, float]


class Fleet:
    """Starts the actors; call `close` in any case.

    Args:
        spec: What to start.

    Raises:
        ValueError: The model cannot be supported.
        OmnivoreError: The actors did not start.
    """

    def __init__(self, spec: FleetSpec) -> None:
        self.spec = spec
        self.names = device_names(spec.devices)
        self._speeds = device_speeds(spec.devices)
        self._server: Any = None
        self._workers: list[Any] = []
        self._runs: dict[Any, int] = {}
        self._requests = 0
        self._lost: set[int] = set()
        try:
            self._start_actors()
        except BaseException:
            self.close()
            raise

    # -- one request at a time ------------------------------------------------------------------

    def start(self, request: Request, *, own_checkpoint: Path | None = None) -> None:
        """Starts a request.

        Args:
            request: What to run; ``resume_from`` is None or the path of a checkpoint folder.
            own_checkpoint: A checkpoint this same request left when it was interrupted.

        Raises:
            ValueError: This fleet cannot run it.
            OmnivoreError: No device is left, or the state to resume from cannot be read.
        """
        self.spec.check(request.strategy)
        self._requests += 1
        begin = self._server.begin.remote(
            self._requests,
            request,
            groups=deal_devices(self._speeds, request.strategy.groups),
            speeds=self._speeds,
            target=self.spec.target,
            time_limit_s=self.spec.time_limit_s,
            own_checkpoint=None if own_checkpoint is None else str(own_checkpoint),
        )
        self._answer(begin)
        for number in sorted(self._lost):
            self._answer(self._server.drop.remote(number, f"{self.names[number]} was lost before"))
        for number, worker in enumerate(self._workers):
            if number not in self._lost:
                self._runs[worker.run.remote(self._server, self._requests)] = number

    def poll(self, timeout_s: float) -> Progress:
        """Waits up to ``timeout_s`` for the request to end, and says where it is.

        Raises:
            OmnivoreError: The user's code failed (its exception is the cause), or the parameter
                server was lost.
        """
        if self._runs:
            done, _ = ray.wait(list(self._runs), num_returns=1, timeout=timeout_s)
            for run in done:
                self._returned(run, self._runs.pop(run))
        ended, metrics = self._answer(self._server.progress.remote())
        return Progress(ended=ended, metrics=metrics)

    def run(
        self, request: Request, *, checkpoint: Path | None = None, timeout_s: float = 600.0
    ) -> Outcome:
        """Starts a request and waits for its outcome; stops it after ``timeout_s``."""
        self.start(request)
        deadline_s = time.monotonic() + timeout_s
        while not self.poll(1.0).ended:
            if time.monotonic() > deadline_s:
                self.stop(f"not finished within {timeout_s:g} s")
        return self.finish(checkpoint)

    def stop(self, reason: str) -> None:
        """Ends the request now; `finish` then gives its outcome."""
        self._answer(self._server.stop.remote(reason))

    def finish(self, checkpoint: Path | None = None) -> Outcome:
        """The outcome of the request that has ended.

        Args:
            checkpoint: Folder to keep its final state and history in.
        """
        path = None if checkpoint is None else str(checkpoint)
        return self._answer(self._server.finish.remote(path))

    def snapshot(self, path: Path) -> None:
        """Writes a checkpoint of this moment of the running request."""
        self._answer(self._server.checkpoint.remote(str(path)))

    def close(self) -> None:
        """Ends every actor of the fleet."""
        for actor in (*self._workers, self._server):
            if actor is not None:
                ray.kill(actor)
        self._server, self._workers, self._runs = None, [], {}

    # -- inside -----------------------------------------------------------------------------------

    def _start_actors(self) -> None:
        spec = self.spec
        self._server = (
            ray.remote(ParameterServer)
            .options(
                num_cpus=0,
                max_concurrency=len(spec.devices) + 4,
                scheduling_strategy="DEFAULT",
            )
            .remote(
                workload=spec.workload,
                num_rows=spec.num_rows,
                num_validation_rows=spec.num_validation_rows,
                seed=spec.seed,
                evaluate_every_s=spec.evaluate_every_s,
            )
        )
        module, layout = self._server.make_model.options(num_returns=2).remote()
        self._answer(layout)
        strategies = _placements(spec.devices)
        for number, device in enumerate(spec.devices):
            worker = (
                ray.remote(Worker)
                .options(
                    num_cpus=device.reserved_cpus,
                    num_gpus=device.gpus,
                    scheduling_strategy=strategies[number],
                )
                .remote(
                    number=number,
                    name=self.names[number],
                    device=device,
                    workload=spec.workload,
                    train=spec.train,
                    validation=spec.validation,
                    module=module,
                    layout=layout,
                    seed=spec.seed,
                )
            )
            self._workers.append(worker)
        try:
            ray.get([worker.ready.remote() for worker in self._workers], timeout=_START_TIMEOUT_S)
        except GetTimeoutError:
            asked = sum(device.reserved_cpus for device in spec.devices)
            raise OmnivoreError(
                f"the workers did not start within {_START_TIMEOUT_S:g} s: the devices ask for "
                f"{asked} CPUs and {ray.available_resources().get('CPU', 0):g} are free"
            ) from None
        except RayTaskError as error:
            cause = _cause(error)
            raise cause from cause.__cause__
        except RayError as error:
            raise OmnivoreError(f"a worker did not start: {error}") from error

    def _returned(self, run: Any, number: int) -> None:
        """A worker's run() came back: told to stop, or lost, or the user's code failed."""
        try:
            ray.get(run)
        except RayActorError as error:
            self._lost.add(number)
            what = f"{self.names[number]} was lost: {_first_line(error)}"
            self._answer(self._server.drop.remote(number, what))
        except RayTaskError as error:
            cause = _cause(error)
            if isinstance(cause, RayActorError):  # its server is gone
                raise OmnivoreError(
                    f"the parameter server was lost: {_first_line(cause)}"
                ) from cause
            raise cause from cause.__cause__

    def _answer(self, call: Any) -> Any:
        try:
            return ray.get(call, timeout=_ANSWER_TIMEOUT_S)
        except RayTaskError as error:
            cause = _cause(error)
            raise cause from cause.__cause__
        except GetTimeoutError:
            raise OmnivoreError(
                f"the parameter server did not answer within {_ANSWER_TIMEOUT_S:g} s"
            ) from None
        except RayActorError as error:
            raise OmnivoreError(f"the parameter server was lost: {_first_line(error)}") from error


def _placements(devices: Sequence[Device]) -> list[Any]:
    """Where each worker goes: its own bundle of the current placement group, if there is one."""
    group = ray.util.get_current_placement_group()
    places: list[Any] = []
    bundle = 0
    for device in devices:
        if group is None or not device.bundle:
            places.append("DEFAULT")
        else:
            places.append(
                PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=bundle)
            )
            bundle += 1
    return places


def _cause(error: BaseException) -> BaseException:
    """The exception behind a chain of Ray's wrappers."""
    while isinstance(error, RayTaskError) and isinstance(error.cause, BaseException):
        error = error.cause
    return error


def _first_line(error: BaseException) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
