"""simulate(): what a cluster that is not there would make of a workload."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

from omnivore_ray.data.datasets import as_split
from omnivore_ray.errors import OmnivoreError
from omnivore_ray.result import SUMMARY, Result
from omnivore_ray.search.algorithm import OmnivoreAlgorithm
from omnivore_ray.search.contract import Algorithm
from omnivore_ray.search.fixed import FixedAlgorithm
from omnivore_ray.simulate.cluster import VirtualCluster
from omnivore_ray.simulate.fleet import VirtualFleet
from omnivore_ray.simulate.records import (
    Finished,
    led_to_the_end,
    write_request,
    write_summary,
)
from omnivore_ray.simulate.timing import timing_request
from omnivore_ray.strategy import Request, Strategy
from omnivore_ray.update.session import Session
from omnivore_ray.workload import Target, Workload

#: Metrics at this moment; called about five times a second.
Watch = Callable[[Mapping[str, float]], None]

_WATCH_EVERY_S = 0.2


def simulate(
    workload: Workload,
    cluster: VirtualCluster,
    strategy: Literal["auto"] | Strategy = "auto",
    *,
    until: Target | None = None,
    time_limit_s: float | None = None,
    seed: int = 0,
    timing_only: bool = False,
    evaluate_every_s: float = 2.0,
    path: Path | str | None = None,
    watch: Watch | None = None,
) -> Result:
    """Trains a workload on a virtual cluster: real gradients, in the order that it would apply.

    Every second here is virtual, also those of the result. Seeded runs repeat bit for bit.

    Args:
        workload: What to train.
        cluster: The cluster that is not there.
        strategy: "auto" (the optimizer finds and re-finds it), or a `Strategy`.
        until: Target that ends the run, or None.
        time_limit_s: Virtual seconds after which the run ends, or None.
        seed: Of the model, the row order, dropout, the step times and the search.
        timing_only: Makes the clock without gradients, for hardware efficiency alone: losses are
            nan, the target can only be on updates, samples or seconds, and devices do not fail.
        evaluate_every_s: Virtual seconds between validations.
        path: Folder of the result; None makes a temporary one.
        watch: Called now and then with the run's metrics, for a progress bar.

    Returns:
        As from a real run.

    Raises:
        ValueError: An argument is not legal; names it, its value and the fix.
        OmnivoreError: The run failed; the user's own exception is the cause.
    """
    _check(workload, cluster, strategy, until, time_limit_s, seed, evaluate_every_s)
    smallest = Strategy(groups=1, learning_rate=1.0)  # the largest groups "auto" may ask for
    cluster.check(strategy if isinstance(strategy, Strategy) else smallest, workload.batch_size)
    folder = _new_folder(path)
    settings = {
        "simulated": str(cluster),
        "strategy": str(strategy),
        "until": None if until is None else str(until),
        "time_limit_s": time_limit_s,
        "seed": seed,
        "timing_only": timing_only,
    }
    if timing_only:
        if not isinstance(strategy, Strategy):
            raise ValueError("timing_only=True has no loss to search by; give a Strategy(...)")
        finished = timing_request(
            workload, cluster, strategy, until=until, time_limit_s=time_limit_s, seed=seed
        )
        write_request(folder, finished, None, finished.outcome.seconds)
        write_summary(folder, [finished], settings=settings, decisions=[], has_checkpoint=False)
        return Result.from_path(folder, workload)
    algorithm: Algorithm
    if isinstance(strategy, Strategy):
        algorithm = FixedAlgorithm(strategy)
    else:
        algorithm = OmnivoreAlgorithm(len(cluster.devices), seed=seed)
    fleet = VirtualFleet(
        workload,
        cluster,
        seed=seed,
        target=until,
        time_limit_s=time_limit_s,
        evaluate_every_s=evaluate_every_s,
        watch=None if watch is None else _Sometimes(watch),
    )
    requests: list[Finished] = []
    while (request := algorithm.ask()) is not None:
        finished = _carry_out(fleet, request, f"request-{len(requests):05d}")
        requests.append(finished)
        write_request(folder, finished, None, fleet.now_s)
        algorithm.tell(request, finished.outcome)
    if algorithm.failure is not None:
        raise OmnivoreError(f"{algorithm.failure} (the run's folder is {folder})")
    final = requests[led_to_the_end(requests)[-1]]
    resumable = final.outcome.checkpoint_path is not None
    if resumable:
        fleet.parameters.restore(fleet.kept(final.name).snapshot)
        write_request(folder, final, fleet.parameters, fleet.now_s)
    write_summary(
        folder,
        requests,
        settings=settings,
        decisions=algorithm.decisions(),
        has_checkpoint=resumable,
    )
    return Result.from_path(folder, workload)


def _carry_out(fleet: VirtualFleet, request: Request, name: str) -> Finished:
    outcome, session = fleet.run(request, name)
    return Finished(
        name=name,
        request=request,
        outcome=outcome,
        history=session.history,
        state=session.state,
        metrics=session.progress(fleet.now_s),
    )


class _Sometimes:
    """Passes metrics on at most five times a second of the real clock: they cost a little."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self._next_s = 0.0

    def __call__(self, session: Session, now_s: float) -> None:
        if time.monotonic() >= self._next_s:
            self._watch(session.progress(now_s))
            self._next_s = time.monotonic() + _WATCH_EVERY_S


def _new_folder(path: Path | str | None) -> Path:
    if path is None:
        return Path(tempfile.mkdtemp(prefix="omnivore-simulate-"))
    folder = Path(path).expanduser().resolve()
    if (folder / SUMMARY).exists():
        raise ValueError(f"path={str(path)!r} holds a run already; give a new folder")
    return folder


def _check(
    workload: Any,
    cluster: Any,
    strategy: Any,
    until: Any,
    time_limit_s: Any,
    seed: Any,
    evaluate_every_s: Any,
) -> None:
    if not isinstance(workload, Workload):
        raise ValueError(f"workload={workload!r}: give a Workload(...)")
    if not isinstance(cluster, VirtualCluster):
        raise ValueError(f"cluster={cluster!r}: give a VirtualCluster(...)")
    if strategy != "auto" and not isinstance(strategy, Strategy):
        raise ValueError(f"strategy={strategy!r}: give 'auto' or a Strategy(...)")
    if until is not None:
        if not isinstance(until, Target):
            raise ValueError(
                f"until={until!r}: give a Target(...), e.g. Target('loss', at_most=0.1)"
            )
        until.check(workload)
        if until.metric in workload.metrics and as_split(workload.data).validation is None:
            raise ValueError(
                f"until={until}: {until.metric!r} is measured on validation data and Workload.data "
                "has none; give datasets.Split(train=..., validation=...), or a target on the loss"
            )
    if until is None and time_limit_s is None:
        raise ValueError("give until= or time_limit_s=, or the run would never end")
    for name, value in (("time_limit_s", time_limit_s), ("evaluate_every_s", evaluate_every_s)):
        if value is not None and not (isinstance(value, (int, float)) and value > 0):
            raise ValueError(f"{name}={value!r}: give a number of seconds above 0")
    if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
        raise ValueError(f"seed={seed!r}: give a whole number, 0 or more")
