"""The oracle of the hardware model: a cluster's events, one by one, with no formula in it."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

Draws = Callable[[int], NDArray[np.float64]]


def seconds_by_events(
    *,
    sizes: Sequence[int],
    compute_s: Sequence[float],
    draws: Draws,
    link_s: float = 0.0,
    head_s: float = 0.0,
    server_s: float = 0.0,
    num_cycles: int = 200,
    barrier: bool = True,
) -> float:
    """Seconds per update of groups that share a link, a head server and a parameter server.

    Members compute at the same time, each ``compute_s`` of its group times a draw; each then
    passes its copy over the link, once the slowest is done (``barrier``) or as soon as it is done
    itself; after the last copy the group visits the head, then the parameter server. All three
    serve one visit at a time in order of arrival. The first quarter of the updates is left out.
    """
    order = itertools.count()
    events: list[tuple[float, int, str, int]] = []
    copies_left = [0] * len(sizes)
    free = {"link": 0.0, "head": 0.0, "server": 0.0}
    applied: list[float] = []

    def put(at: float, place: str, group: int) -> None:
        heapq.heappush(events, (at, next(order), place, group))

    def start(at: float, group: int) -> None:
        done = at + compute_s[group] * draws(sizes[group])
        copies_left[group] = sizes[group]
        for each in done:
            put(float(done.max() if barrier else each), "link", group)

    def serve(at: float, place: str, seconds: float) -> float:
        free[place] = max(at, free[place]) + seconds
        return free[place]

    for group in range(len(sizes)):
        start(0.0, group)
    while len(applied) < num_cycles * len(sizes):
        at, _, place, group = heapq.heappop(events)
        if place == "link":
            done = serve(at, "link", link_s)
            copies_left[group] -= 1
            if copies_left[group] == 0:
                put(done, "head", group)
        elif place == "head":
            put(serve(at, "head", head_s), "server", group)
        else:
            applied.append(serve(at, "server", server_s))
            start(applied[-1], group)
    first = len(applied) // 4
    return (applied[-1] - applied[first]) / (len(applied) - 1 - first)


@pytest.fixture(scope="session")
def events() -> Callable[..., Any]:
    """`seconds_by_events`, the oracle."""
    return seconds_by_events
