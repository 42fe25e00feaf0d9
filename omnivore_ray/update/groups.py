"""Who computes with whom, and how many rows each one takes: pure functions of device speeds."""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heapreplace

import numpy as np


def deal_devices(speeds: Sequence[float], groups: int) -> list[list[int]]:
    """Deals devices into compute groups of nearly equal total speed.

    Fastest first, each to the group that is slowest so far (longest-processing-time rule); sizes
    differ by at most one when the speeds are equal.

    Args:
        speeds: Speed of each device, in samples per second or any common unit, shape ``(N,)``.
        groups: Number of groups ``g``, 1 to N.

    Returns:
        ``g`` lists of device numbers, each in rising order, ordered by their first device.

    Raises:
        ValueError: ``groups`` is not between 1 and N, or a speed is not above 0.
    """
    if not 1 <= groups <= len(speeds):
        raise ValueError(
            f"groups={groups}: there are {len(speeds)} devices, so give 1 to {len(speeds)}"
        )
    for device, speed in enumerate(speeds):
        if not speed > 0:
            raise ValueError(f"speed of device {device} is {speed!r}: give a number above 0")
    dealt: list[list[int]] = [[] for _ in range(groups)]
    slowest = [(0.0, 0, group) for group in range(groups)]  # a heap: total speed, size, number
    for device in sorted(range(len(speeds)), key=lambda d: -speeds[d]):
        total, size, group = slowest[0]
        dealt[group].append(device)
        heapreplace(slowest, (total + speeds[device], size + 1, group))
    return sorted(sorted(members) for members in dealt)


def check_groups(speeds: Sequence[float], groups: int, batch_size: int) -> None:
    """Refuses a number of groups that devices of these speeds cannot form.

    Raises:
        ValueError: More groups than devices, or a batch smaller than a group.
    """
    if groups > len(speeds):
        raise ValueError(
            f"groups={groups} but there are {len(speeds)} devices; use at most {len(speeds)} groups"
        )
    members = max(len(group) for group in deal_devices(speeds, groups))
    if batch_size < members:
        raise ValueError(
            f"Workload.batch_size={batch_size} is below the {members} devices of a group "
            f"(groups={groups}); use a larger batch or more groups"
        )


def deal_rows(
    start: int, stop: int, devices: Sequence[int], speeds: Sequence[float]
) -> list[tuple[int, int, int]]:
    """Cuts rows ``[start, stop)`` among devices in proportion to their speeds.

    No share has a single row, on which BatchNorm cannot train, unless there is only one to give.

    Args:
        start: First row.
        stop: One past the last row.
        devices: Device numbers that share the rows, at least one.
        speeds: Speed of every device of the fleet, indexed by device number.

    Returns:
        ``(device, start, stop)`` for each device that gets a row, in order and without gaps.
    """
    if len(devices) == 1:
        return [(devices[0], start, stop)] if stop > start else []
    cumulative = np.cumsum([speeds[device] for device in devices])
    edges = start + np.rint((stop - start) * cumulative / cumulative[-1]).astype(int)
    lows = [start, *edges[:-1].tolist()]
    pieces = [
        (device, low, high)
        for device, low, high in zip(devices, lows, edges.tolist(), strict=True)
        if high > low
    ]
    while len(pieces) > 1:
        sizes = [high - low for _, low, high in pieces]
        if 1 not in sizes:
            break
        single = sizes.index(1)
        beside = [index for index in (single - 1, single + 1) if 0 <= index < len(pieces)]
        other = min(beside, key=lambda index: sizes[index])
        _, low, high = pieces[single]
        device, other_low, other_high = pieces[other]
        pieces[other] = (device, min(low, other_low), max(high, other_high))
        del pieces[single]
    return pieces
