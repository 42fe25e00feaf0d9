"""The virtual clock: where time goes in a cluster, and a timing run that has nothing but time.

Link, head server and parameter server each serve one visit at a time in order of arrival. Whoever
leaves the one arrives at the next in the same order, so each is no more than the time from which
it is free, and the only events to be sorted are the ends of computations. A timing run makes one
such event a step, and no gradient; a run with gradients (`fleet.py`) makes the same times.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from heapq import heapify, heappop, heappush, heapreplace
from typing import Any

from omnivore_ray.simulate.cluster import VirtualCluster
from omnivore_ray.simulate.service_times import Factors
from omnivore_ray.update.groups import deal_devices, deal_rows

TIMING_COLUMNS = ("version", "group", "version_read", "samples", "time_s", "compute_s")


class Pipeline:
    """The link and the two servers, from one visit to the next.

    Args:
        cluster: Their speeds.
    """

    def __init__(self, cluster: VirtualCluster) -> None:
        self._head_s = cluster.head_batch_s
        self._update_s = cluster.server.update_s
        self._link_free_s = self._head_free_s = self._server_free_s = 0.0

    def through_link(self, now_s: float, visit_s: float) -> float:
        """When a visit that arrives now has left the link."""
        self._link_free_s = max(self._link_free_s, now_s) + visit_s
        return self._link_free_s

    def through_servers(self, now_s: float) -> float:
        """When a batch that arrives now at the head server has become an update."""
        self._head_free_s = max(self._head_free_s, now_s) + self._head_s
        self._server_free_s = max(self._server_free_s, self._head_free_s) + self._update_s
        return self._server_free_s


def timing_run(
    cluster: VirtualCluster,
    *,
    groups: int,
    batch_samples: Callable[[int], int],
    copy_bytes: float,
    seed: int = 0,
    most_updates: float = math.inf,
    most_samples: float = math.inf,
    most_s: float = math.inf,
) -> dict[str, list[Any]]:
    """Hardware efficiency alone: when updates are applied, and how stale they are.

    Ends with the first update at which a limit is met; ``most_s`` is not passed.

    Args:
        cluster: Whose time it is; its failures are not simulated.
        groups: Compute groups, 1 to N.
        batch_samples: Batch number to its number of rows.
        copy_bytes: Of the workload's parameters.
        seed: Of the step times.
        most_updates: Updates to apply.
        most_samples: Samples to use.
        most_s: Seconds to run.

    Returns:
        The columns `TIMING_COLUMNS` of `omnivore_ray.update.history`, one row an update.

    Raises:
        ValueError: Groups is not between 1 and N, or no limit is given.
    """
    if min(most_updates, most_samples, most_s) == math.inf:
        raise ValueError("most_updates=inf: give at least one limit, or it would never end")
    members = deal_devices(cluster.speeds, groups)
    group_of = {device: group for group, devices in enumerate(members) for device in devices}
    deal = _Dealer(members, cluster.speeds)
    next_factor = Factors([device.service_times for device in cluster.devices], seed).next
    pipeline = Pipeline(cluster)
    visit_s = 2 * cluster.transfer_s(copy_bytes)
    left = [0] * groups  # members that still compute, or wait for the link
    read, size, slowest_s = [0] * groups, [0] * groups, [0.0] * groups
    batch = version = samples = 0
    rows: list[tuple[float, ...]] = []

    def steps(group: int, now_s: float) -> list[tuple[float, int]]:
        """Ends of the members' steps, and the members, for the next batch."""
        nonlocal batch
        size[group], read[group] = batch_samples(batch), version
        batch += 1
        took = [
            (mean_s * next_factor(device), device) for device, mean_s in deal(group, size[group])
        ]
        left[group], slowest_s[group] = len(took), max(took)[0]
        return [(now_s + step_s, device) for step_s, device in took]

    # the device that asks last starts the clock, so its group is served first
    opening = sorted(range(groups), key=lambda group: group != group_of[len(group_of) - 1])
    computing = [step for group in opening for step in steps(group, 0.0)]
    heapify(computing)
    while True:
        now_s, device = computing[0]
        now_s = pipeline.through_link(now_s, visit_s)
        group = group_of[device]
        left[group] -= 1
        if left[group]:
            heappop(computing)
            continue
        now_s = pipeline.through_servers(now_s)
        if now_s > most_s:
            break
        version += 1
        samples += size[group]
        rows.append((version, group, read[group], size[group], now_s, slowest_s[group]))
        if version >= most_updates or samples >= most_samples:
            break
        first, *others = steps(group, now_s)
        heapreplace(computing, first)
        for step in others:
            heappush(computing, step)
    values = zip(*rows, strict=True) if rows else ((),) * len(TIMING_COLUMNS)
    return {name: list(column) for name, column in zip(TIMING_COLUMNS, values, strict=True)}


class _Dealer:
    """Mean seconds of each member's share of a batch; few sizes of batch occur."""

    def __init__(self, members: list[list[int]], speeds: tuple[float, ...]) -> None:
        self._members, self._speeds = members, speeds
        self._known: dict[tuple[int, int], list[tuple[int, float]]] = {}

    def __call__(self, group: int, rows: int) -> list[tuple[int, float]]:
        shares = self._known.get((group, rows))
        if shares is None:
            dealt = deal_rows(0, rows, self._members[group], self._speeds)
            shares = [(d, (stop - start) / self._speeds[d]) for d, start, stop in dealt]
            self._known[group, rows] = shares
        return shares
