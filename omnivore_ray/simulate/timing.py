"""A run without gradients, written down like any other: hardware efficiency alone."""

from __future__ import annotations

import math
from dataclasses import asdict

from omnivore_ray.data.datasets import as_split
from omnivore_ray.data.sampler import batch_samples
from omnivore_ray.simulate.clock import timing_run
from omnivore_ray.simulate.cluster import VirtualCluster
from omnivore_ray.simulate.records import Finished
from omnivore_ray.strategy import Outcome, Request, Strategy
from omnivore_ray.update.groups import deal_devices
from omnivore_ray.update.history import History
from omnivore_ray.update.parameters import Parameters
from omnivore_ray.update.run_state import RunState
from omnivore_ray.workload import Target, Workload

_CLOCK_METRICS = ("updates", "samples", "seconds")


def timing_request(
    workload: Workload,
    cluster: VirtualCluster,
    strategy: Strategy,
    *,
    until: Target | None,
    time_limit_s: float | None,
    seed: int,
) -> Finished:
    """The one request of a timing run.

    Args:
        workload: Its batches, and the size of its parameters where the network has none.
        cluster: Whose time it is.
        strategy: Only its groups matter.
        until: On updates, samples or seconds, or None.
        time_limit_s: Virtual seconds to run, or None.
        seed: Of the step times.

    Raises:
        ValueError: The target needs gradients, or a device fails.
    """
    if until is not None and (until.metric not in _CLOCK_METRICS or until.at_least is None):
        raise ValueError(
            f"until={until}: with timing_only=True give updates>=..., samples>=... or seconds>=..."
        )
    for number, device in enumerate(cluster.devices):
        if device.fails_at_s is not None:
            raise ValueError(
                f"devices[{number}].fails_at_s={device.fails_at_s!r}: failures are simulated with "
                "gradients only; give None, or timing_only=False"
            )
    metric, bound = ("", math.inf) if until is None else (until.metric, until.bound)
    limits_s = [math.inf if time_limit_s is None else time_limit_s]
    limits_s += [bound] if metric == "seconds" else []
    copy_bytes = _copy_bytes(workload, cluster)
    num_rows = len(as_split(workload.data).train)
    columns = timing_run(
        cluster,
        groups=strategy.groups,
        batch_samples=lambda batch: batch_samples(num_rows, workload.batch_size, batch),
        copy_bytes=copy_bytes,
        seed=seed,
        most_updates=bound if metric == "updates" else math.inf,
        most_samples=bound if metric == "samples" else math.inf,
        most_s=min(limits_s),
    )
    history = _history(columns, cluster, strategy, copy_bytes)
    values = {"updates": float(len(history)), "samples": float(sum(columns["samples"]))}
    at_once = metric in values and values[metric] >= bound  # rather than out of time
    ended_s = columns["time_s"][-1] if at_once else min(limits_s)
    values["seconds"] = ended_s
    met = until is not None and until.reached(values[metric])
    return Finished(
        name="request-00000",
        request=Request(kind="train", strategy=strategy, reason="timing only"),
        outcome=Outcome(
            status="target_reached" if met else "out_of_time",
            updates=len(history),
            samples=sum(columns["samples"]),
            seconds=ended_s,
        ),
        history=history,
        state=RunState(version=len(history), samples=sum(columns["samples"])),
        metrics={
            "loss": math.nan,
            **values,
            "samples_per_s": values["samples"] / ended_s,
            "seconds_per_update": ended_s / len(history) if len(history) else math.nan,
            "staleness_mean": history.mean("staleness"),
            "bytes_per_update": history.mean("bytes"),
            **asdict(strategy),
        },
    )


def _copy_bytes(workload: Workload, cluster: VirtualCluster) -> int:
    """Bytes of one copy of the parameters; the model is only made where they are not given."""
    network = cluster.network
    if network is None:
        return 0
    if network.copy_bytes is not None:
        return int(network.copy_bytes)
    return Parameters(workload.model(), workload.optimizer).layout.nbytes


def _history(
    columns: dict[str, list[float]], cluster: VirtualCluster, strategy: Strategy, copy_bytes: int
) -> History:
    updates = len(columns["version"])
    members = [len(group) for group in deal_devices(cluster.speeds, strategy.groups)]
    pairs = zip(columns["version"], columns["version_read"], strict=True)
    history = History()
    history.columns.update(
        columns,
        staleness=[version - 1 - read for version, read in pairs],
        learning_rate=[strategy.learning_rate] * updates,
        momentum=[strategy.momentum] * updates,
        loss=[math.nan] * updates,
        bytes=[2 * copy_bytes * members[int(group)] for group in columns["group"]],
    )
    return history
