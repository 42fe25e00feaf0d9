"""Time to target: hardware efficiency times statistical efficiency, and its two penalties.

    time(g) = HE(g) SE(g) = time(1) P_HE(g) P_SE(g)
    P_HE(g) = HE(g) / HE(1),  P_SE(g) = SE(g) / SE(1)

HE(g) is seconds per update and falls with g until something saturates; SE(g) is the updates to a
target and in general rises with g. The best g balances the two (PAPER.md sections 3 and 4).

SE is seldom known to its end, so it is extrapolated from the loss curve of a shorter run by a
power law that levels off,

    loss(x) = a + b (1 + x/c)^-beta

fitted by least squares on log loss, since noise of a mini-batch loss grows with the loss. Curves
are first averaged in blocks. Short noisy curves do not determine four numbers, so each has a wide
prior on a log scale; the prior keeps the fit finite and a standard error honest, and fades as
points come in. The posterior is taken as normal around its peak, and the answer is the median of
what it implies for the update that reaches the target. Noise is taken as independent from point
to point: with smoothed curves the standard error is too small.

============== ============================================================ ==================
symbol         meaning                                                      unit or shape
============== ============================================================ ==================
g              compute groups                                               whole number
HE, SE         seconds per update; updates to the target                    s; updates
P_HE, P_SE     hardware and statistical efficiency penalty, 1 at g = 1      ratio
x              updates since the curve began                                updates
a              floor that the loss tends to                                 > 0
b, c, beta     what is above the floor at x = 0; updates until the fall     > 0
               begins; its power
theta          log a, log b, log c, log beta                                shape (4,)
r              log loss(x; theta) - log observed, over the noise, and the   shape (n + 4,)
               distance of theta from the prior's centre, over its width
============== ============================================================ ==================
"""

from __future__ import annotations

import math
from functools import partial
from operator import itemgetter
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from omnivore_ray.efficiency.least_squares import jacobian, minimise

Array = NDArray[np.float64]

_NUM_BLOCKS = 40
_LEAST_POINTS = 6
_NUM_DRAWS = 1000
_LEAST_NOISE = 1e-3
_FLOOR = 0.05
_NUM_NOISE_STEPS = 4
_STARTS = np.array([[0, 0, 0, 0], [-2, 0, -1, -0.5], [1, 0, 1, 0.7]])
_PRIOR_WIDTH = np.array([1.5, 1.0, 1.5, 0.7])


def hardware_efficiency_penalty(seconds_per_update: ArrayLike, at_one_group: float) -> Array:
    """P_HE(g) = HE(g) / HE(1); at most 1 where groups help. Any shape."""
    return _ratio(seconds_per_update, at_one_group)


def statistical_efficiency_penalty(updates: ArrayLike, at_one_group: float) -> Array:
    """P_SE(g) = SE(g) / SE(1); inf where the target is never reached. Any shape."""
    return _ratio(updates, at_one_group)


def time_to_target(seconds_per_update: ArrayLike, updates: ArrayLike) -> Array:
    """HE(g) SE(g) in seconds; shapes broadcast, and inf or nan updates stay so.

    Raises:
        ValueError: A number of seconds per update is not above 0.
    """
    seconds = np.asarray(seconds_per_update, dtype=np.float64)
    if not np.all(seconds > 0):
        raise ValueError(f"seconds_per_update={seconds_per_update!r}: give numbers above 0")
    return np.asarray(seconds * np.asarray(updates, dtype=np.float64))


def best_groups(groups: ArrayLike, seconds_per_update: ArrayLike, updates: ArrayLike) -> int:
    """The number of groups that reaches the target first; the smallest of equals.

    Args:
        groups: Candidates, shape ``(n,)``.
        seconds_per_update: HE of each, shape ``(n,)``.
        updates: SE of each, shape ``(n,)``; inf or nan where it is not known to arrive.

    Raises:
        ValueError: No candidate is known to arrive.
    """
    g = np.asarray(groups)
    seconds = time_to_target(seconds_per_update, updates)
    seconds = np.where(np.isnan(seconds), np.inf, seconds)
    if not np.any(np.isfinite(seconds)):
        raise ValueError(f"updates={updates!r}: no number of groups is known to reach the target")
    return int(g[seconds == seconds.min()].min())


class Extrapolation(NamedTuple):
    """When a loss curve reaches a target.

    Attributes:
        updates: Updates from the start of the curve; inf when the curve levels off above the
            target, nan when that cannot be said.
        standard_error: Of ``updates``, half the width of the central 68 %; inf when more than
            16 % of that is "never", nan when ``updates`` is not finite.
        reason: Why ``updates`` is inf or nan; empty otherwise.
    """

    updates: float
    standard_error: float
    reason: str = ""


def updates_to_target(x: ArrayLike, loss: ArrayLike, target: float) -> Extrapolation:
    """Extrapolates a loss curve to a target.

    Args:
        x: Updates at which the loss was observed, rising, shape ``(n,)``.
        loss: Loss there, above 0, shape ``(n,)``; each the mean of about as many updates.
        target: Loss to reach, above 0.

    Returns:
        The updates and their standard error, or inf or nan with a reason.

    Raises:
        ValueError: ``x`` and ``loss`` differ in shape, ``x`` does not rise, or ``target`` is not
            above 0.
    """
    at, observed = np.asarray(x, dtype=np.float64), np.asarray(loss, dtype=np.float64)
    if at.ndim != 1 or at.shape != observed.shape or np.any(np.diff(at) <= 0):
        raise ValueError(f"x={x!r}: give rising numbers of updates, as many as losses")
    if not target > 0:
        raise ValueError(f"target={target!r}: give a loss above 0")
    if not np.all(np.isfinite(observed)) or np.any(observed <= 0):
        return _unknown("the curve has losses that are not finite numbers above 0")
    if len(at) < _LEAST_POINTS:
        return _unknown(f"{len(at)} points are too few; {_LEAST_POINTS} is the least")
    at, log_loss = _blocks(at), np.log(_blocks(observed))
    theta, covariance, noise = _posterior(at, log_loss)
    quarter = max(2, len(at) // 4)
    fall = float(log_loss[:quarter].mean() - log_loss[-quarter:].mean())
    if fall < 3 * noise * math.sqrt(2 / quarter):
        return _unknown("the loss does not fall by more than its noise")
    draws = np.random.default_rng(0).multivariate_normal(theta, covariance, _NUM_DRAWS)
    reached = np.sort(_crossing(draws, target))
    low, middle, high = (float(reached[int(q * _NUM_DRAWS)]) for q in (0.16, 0.5, 0.84))
    if math.isinf(low):
        return Extrapolation(math.inf, math.nan, "the curve levels off above the target")
    if math.isinf(middle):
        return _unknown("the curve is too short or noisy to tell if it levels off above the target")
    return Extrapolation(middle, (high - low) / 2)


def _unknown(reason: str) -> Extrapolation:
    return Extrapolation(math.nan, math.nan, reason)


def _blocks(values: Array) -> Array:
    """Means of up to ``_NUM_BLOCKS`` runs of neighbours of equal length."""
    count = min(_NUM_BLOCKS, len(values))
    return np.array([block.mean() for block in np.array_split(values, count)])


def _posterior(x: Array, log_loss: Array) -> tuple[Array, Array, float]:
    """Peak and covariance of theta, and the noise of a block's log loss."""
    lowest, span = math.exp(log_loss.min()), float(x[-1])
    drop = max(math.exp(log_loss[0]) - lowest, 0.1 * lowest)
    centre = np.log([_FLOOR * lowest, drop, 0.2 * span, 0.7])
    noise = float(log_loss.std()) + _LEAST_NOISE
    starts = list(centre + _STARTS)
    for _ in range(_NUM_NOISE_STEPS):
        errors = partial(_errors, x=x, log_loss=log_loss, centre=centre, noise=noise)
        theta, _ = min((minimise(errors, start) for start in starts), key=itemgetter(1))
        starts = [theta]
        residual = errors(theta)[: len(x)] * noise
        degrees = max(1, len(x) - 3)
        noise = math.sqrt(float(residual @ residual) / degrees) + _LEAST_NOISE
    J = jacobian(errors, theta)
    covariance: Array = np.linalg.inv(J.T @ J).astype(np.float64)
    return theta, covariance, noise


def _errors(theta: Array, *, x: Array, log_loss: Array, centre: Array, noise: float) -> Array:
    a, b, c, beta = np.exp(np.clip(theta, -50, 50))
    model = np.log(a + b * np.exp(-beta * np.log1p(x / c)))
    return np.concatenate(((model - log_loss) / noise, (theta - centre) / _PRIOR_WIDTH))


def _crossing(theta: Array, target: float) -> Array:
    """The x at which each curve reaches ``target``: theta of shape (m, 4) to shape (m,)."""
    a, b, c, beta = np.exp(np.clip(theta, -50, 50)).T
    with np.errstate(divide="ignore", over="ignore"):
        remaining = np.clip((target - a) / b, 0, 1)
        return np.asarray(np.abs(c * np.expm1(-np.log(remaining) / beta)))


def _ratio(values: ArrayLike, at_one_group: float) -> Array:
    if not (math.isfinite(at_one_group) and at_one_group > 0):
        raise ValueError(f"at_one_group={at_one_group!r}: give a finite number above 0")
    return np.asarray(np.asarray(values, dtype=np.float64) / at_one_group)
