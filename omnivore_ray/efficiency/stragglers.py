"""How long the slowest and the fastest of k devices take: the barrier inside a compute group.

A device's step takes its mean time multiplied by a random factor of mean 1, independent from
device to device and from step to step. A group is done when its slowest member is, so it waits
for the largest of ``k`` factors. Two descriptions of the factor are offered:

* a coefficient of variation ``cv``, with gamma distributed factors. That is a constant at
  ``cv = 0``, near-normal when ``cv`` is small, and exactly exponential at ``cv = 1``, where the
  expected maximum is the harmonic number ``1 + 1/2 + ... + 1/k``;
* measured factors, for what no gamma describes (rare long stalls). The maximum is then that of
  ``k`` draws from the measurements; take many more measurements than ``k``.

======= ================================================================ ===================
symbol  meaning                                                          unit or shape
======= ================================================================ ===================
k       devices of one group                                             whole number >= 1
cv      standard deviation of a device's step time over its mean         number >= 0
X       a device's step time over its mean                               number >= 0
F       cumulative distribution of X, so F**k is that of the slowest     in [0, 1]
======= ================================================================ ===================
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

_SMALL_CV = 1e-3
_GRID_POINTS = 4000


class Extremes(NamedTuple):
    """Of k factors of mean 1: the largest's mean and standard deviation, the smallest's mean."""

    mean: float
    sd: float
    fastest: float


@lru_cache(maxsize=4096)
def slowest_of(k: int, cv: float = 0.0, service_times: tuple[float, ...] = ()) -> Extremes:
    """The largest of ``k`` step times, in units of their mean.

    Args:
        k: Devices of the group.
        cv: Coefficient of variation of the gamma distributed step times.
        service_times: Measured step times in any unit; when given they replace ``cv``.

    Returns:
        Its mean, ``E[max of k]``, its standard deviation, and the mean of the smallest.
    """
    if service_times:
        return _largest_of_samples(k, service_times)
    if cv < _SMALL_CV:
        # The gamma is normal there, and the excess of its maximum is proportional to cv.
        edge = _largest_of_gammas(k, _SMALL_CV)
        scale = cv / _SMALL_CV
        return Extremes(
            1 + (edge.mean - 1) * scale, edge.sd * scale, 1 + (edge.fastest - 1) * scale
        )
    return _largest_of_gammas(k, cv)


def _largest_of_samples(k: int, service_times: tuple[float, ...]) -> Extremes:
    x = np.sort(np.asarray(service_times, dtype=float))
    x /= x.mean()
    weights = np.diff((np.arange(len(x) + 1) / len(x)) ** k)
    mean = float(weights @ x)
    sd = math.sqrt(max(0.0, float(weights @ (x - mean) ** 2)))
    return Extremes(mean, sd, float(weights[::-1] @ x))


def _largest_of_gammas(k: int, cv: float) -> Extremes:
    """Integrates 1 - F**k over a grid in log x, which suits every shape of gamma."""
    shape = 1 / cv**2
    lowest = -12 * cv
    highest = math.log(1 + 12 * cv + 60 * cv**2)
    u = np.linspace(lowest, highest, _GRID_POINTS)
    log_x = u + math.log(shape)
    density = np.exp(shape * log_x - np.exp(log_x) - math.lgamma(shape))
    first = float(log_x[0])
    below = math.exp(shape * first - math.exp(first) - math.lgamma(shape + 1))
    steps = _midpoints(density) * (u[1] - u[0])
    cumulative = np.minimum(1.0, below + np.concatenate(([0.0], np.cumsum(steps))))
    x = np.exp(u)
    largest_above, smallest_above = _midpoints(1 - cumulative**k), _midpoints((1 - cumulative) ** k)
    mean = float(x[0] + largest_above @ np.diff(x))
    square = float(x[0] ** 2 + largest_above @ np.diff(x**2))
    fastest = float(x[0] * (1 - below) ** k + smallest_above @ np.diff(x))
    return Extremes(mean, math.sqrt(max(0.0, square - mean**2)), fastest)


def _midpoints(values: NDArray[np.float64]) -> NDArray[np.float64]:
    return (values[1:] + values[:-1]) / 2
