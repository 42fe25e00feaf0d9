"""Which requests of a search led to its final state: the others' work was given up."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Ended(NamedTuple):
    """A request that has ended.

    Attributes:
        end_state: Name of the state it ended in, or None when there is none to go on from.
        start_state: Name of the state it started from, or None for the initial one.
        kind: "probe" or "train".
        status: See `omnivore_ray.strategy.Outcome`.
        loss: Smoothed loss at its end, or None when it is not finite.
    """

    end_state: str | None
    start_state: str | None
    kind: str
    status: str
    loss: float | None


def main_line(requests: Sequence[Ended]) -> list[int]:
    """Numbers of the requests that led to the final state, in order.

    The final state is that of the last request. If that was a probe that the end of the run cut
    short, it is where the probe started from, or, in a cold start, the probe with the lowest loss.
    """
    made_by = {
        ended.end_state: number
        for number, ended in enumerate(requests)
        if ended.end_state is not None
    }
    number: int | None = len(requests) - 1 if requests else None
    if requests:
        last = requests[-1]
        cut_short = last.kind == "probe" and last.status != "target_reached"
        losses = {n: e.loss for n, e in enumerate(requests) if e.loss is not None and e.end_state}
        if cut_short and last.start_state in made_by:
            number = made_by[last.start_state]
        elif cut_short and losses:
            number = min(losses, key=lambda n: losses[n])
    chain: list[int] = []
    while number is not None and number not in chain:
        chain.append(number)
        start = requests[number].start_state
        number = None if start is None else made_by.get(start)
    return chain[::-1]
