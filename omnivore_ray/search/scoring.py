"""How good a probe was, with its noise: pure functions of loss curves.

A curve is a sequence of (updates, seconds, loss) points, each loss the mean over the updates since
the point before. Curves that are compared began at the same state.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Curve = Sequence[tuple[int, float, float]]
Array = NDArray[np.float64]
TAIL = 1 / 3
SLOWEST = -4.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Score:
    """A number and its standard error; smaller losses, larger speeds are better."""

    value: float
    error: float


def pace(curve: Curve, groups: int) -> float:
    """Seconds per update once all groups are at work: the first ``groups`` updates left out."""
    late = [point for point in curve if point[0] >= groups] or list(curve[-1:])
    (n0, t0, _), (n1, t1, _) = late[0], late[-1]
    if n1 == n0:
        return t1 / n1
    return (t1 - t0) / (n1 - n0)


def without_fill(curve: Curve, groups: int) -> list[tuple[int, float, float]]:
    """The curve with its first update after one pace, not after one whole cycle of a group.

    A long stretch pays for filling the pipeline once, so a short probe must not be judged on it.
    """
    if not curve:
        return []
    n, at_s, _ = curve[0]
    fill_s = max(0.0, at_s - n * pace(curve, groups))
    return [(m, t - fill_s, loss) for m, t, loss in curve]


def tail_loss(curve: Curve, at_s: float) -> Score:
    """Mean loss over the last third of the first ``at_s`` seconds.

    The error comes from the scatter around a straight line, so a falling loss is not noise.
    """
    part = [point for point in curve if (1 - TAIL) * at_s < point[1] <= at_s * 1.001]
    part = part or list(curve[-1:])
    times = np.array([point[1] for point in part])
    losses = np.array([point[2] for point in part])
    if len(part) < 4:
        return Score(value=float(losses.mean()), error=math.inf)
    slope, at_0 = np.polyfit(times, losses, 1)
    scatter = losses - at_0 - slope * times
    error = math.sqrt(float(scatter @ scatter) / (len(part) - 2) / len(part))
    return Score(value=float(losses.mean()), error=error)


def monotone(curve: Curve) -> tuple[Array, Array]:
    """(seconds, loss) with the loss made non-increasing: pool adjacent violators, by updates."""
    blocks: list[list[float]] = []
    before = 0
    for n, at_s, loss in curve:
        blocks.append([loss, float(n - before), at_s * (n - before)])
        before = n
        while len(blocks) > 1 and blocks[-2][0] <= blocks[-1][0]:
            value, weight, at = blocks.pop()
            last = blocks[-1]
            last[0] = (last[0] * last[1] + value * weight) / (last[1] + weight)
            last[1] += weight
            last[2] += at
    return np.array([b[2] / b[1] for b in blocks]), np.array([b[0] for b in blocks])


def log_speeds(curves: Sequence[Curve], at_s: float) -> list[Score]:
    """Logarithm of each curve's speed relative to the best one's, at equal wall time.

    A curve's speed is how far along the best curve its final loss lies: 0 for the best itself,
    about -0.7 for one that got where the best was half way; never below -4.
    """
    ends = [tail_loss(curve, at_s) for curve in curves]
    best = min(range(len(curves)), key=lambda i: ends[i].value)
    times, losses = monotone([p for p in curves[best] if p[1] <= at_s * 1.001] or curves[best])

    def reached_s(loss: float) -> float:
        return float(np.interp(-loss, -losses, times))

    full_s = reached_s(ends[best].value)
    speeds = []
    for end in ends:
        value = max(math.log(max(reached_s(end.value) / full_s, 1e-9)), SLOWEST)
        spread_s = reached_s(end.value - end.error) - reached_s(end.value + end.error)
        error = spread_s / 2 / max(reached_s(end.value), 1e-9) if end.error < math.inf else math.inf
        speeds.append(Score(value=value, error=max(error, 1e-3)))
    return speeds


def peak(xs: Sequence[float], ys: Sequence[float]) -> float:
    """Where the parabola through the best point and its neighbours peaks.

    Args:
        xs: At least one position, increasing.
        ys: The values there; larger is better.

    Returns:
        A position no further from the best point than half way to its neighbours; the best point
        itself when it is at an edge.
    """
    i = int(np.argmax(ys))
    if i in (0, len(xs) - 1):
        return xs[i]
    (a, b, c), (ya, yb, yc) = xs[i - 1 : i + 2], ys[i - 1 : i + 2]
    left, right = (yb - ya) / (b - a), (yc - yb) / (c - b)
    curvature = (right - left) / (c - a)
    if curvature >= 0:
        return b
    return (a + b) / 2 - left / (2 * curvature)


def fall(curve: Curve) -> float:
    """How clearly the loss falls: its first third less its last, in standard errors."""
    third = len(curve) // 3
    if third < 2:
        return math.inf if curve and curve[-1][2] < curve[0][2] else 0.0
    first, last = ([point[2] for point in part] for part in (curve[:third], curve[-third:]))
    error = math.sqrt((np.var(first, ddof=1) + np.var(last, ddof=1)) / third)
    return float(np.mean(first) - np.mean(last)) / max(error, 1e-12)


def exponent(curve: Curve, before_s: float) -> float:
    """How fast the loss falls by a power of the run's time: -d log loss / d log time, at least 0.

    Args:
        curve: A long stretch.
        before_s: Seconds trained before it.
    """
    third = max(1, len(curve) // 3)
    (t0, y0), (t1, y1) = (
        (float(np.mean([p[1] for p in part])) + before_s, float(np.mean([p[2] for p in part])))
        for part in (curve[:third], curve[-third:])
    )
    if t1 <= t0 or y1 >= y0 or y1 <= 0:
        return 0.0
    return math.log(y0 / y1) / math.log(t1 / t0)
