"""Statistical efficiency: what asynchrony does to stochastic gradient descent with momentum.

With g groups, the gradient applied at update t was taken at w_{t-s}, s the staleness: the updates
that others applied in between. If s is geometric, which it is when each group's time from read to
write is exponential, then asynchrony acts like momentum on the mean path ("Asynchrony begets
Momentum", 1605.09774; PAPER.md section 4), and it also divides the step:

    E[w_{t+1} - w_t] = mu_S E[w_t - w_{t-1}] - (1 - mu_S) lr E[grad(w_t)],        mu_S = 1 - 1/g

With explicit momentum mu_L the two are filters in series. With d_t = E[w_t - w_{t-1}]:

    d_{t+1} = (mu_L + mu_S) d_t - mu_L mu_S d_{t-1} - (1 - mu_S) lr E[grad(w_t)]

All of this is about E[w]. It knows nothing of the noise around it, and the real queue diverges at
learning rates far below those that are best here: predict no limits of lr or penalties from it.
Near-equal group times give an almost constant staleness with the same mean g - 1 and without the
implicit momentum, so the mean proves nothing; q_0 and the variance together tell the two apart.

========= ==================================================================== ==============
symbol    meaning                                                              unit or shape
========= ==================================================================== ==============
g         compute groups                                                       whole number
s, q_0    staleness of an update, and the share of updates with s = 0          updates, [0, 1]
mu_S      implicit momentum, of staleness                                      [0, 1)
mu_L      explicit momentum, of the learner's SGD                              (-1, 1)
mu        total momentum, 1 - (1 - mu_L)(1 - mu_S)                             (-1, 1)
lr        learning rate of the server's SGD                                    > 0
lambda    curvatures of a quadratic, its gradient being lambda w               shape (n,)
z         1 + mu_S + mu_L - lr (1 - mu_S) lambda                               shape (n,)
r         roots of r^3 - z r^2 + (mu_S + mu_L + mu_S mu_L) r - mu_S mu_L       shape (n, 3)
A, B, C   means of x_{t+1} - x_t, of x_{t+1} - 2 x_t + x_{t-1}, of gradients   shape (n,)
========= ==================================================================== ==============
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.float64]


def _floats(values: ArrayLike) -> Array:
    return np.asarray(values, dtype=np.float64)


def implicit_momentum(g: ArrayLike) -> Array:
    """mu_S = 1 - 1/g, for g groups with exponential times; any shape."""
    return 1 - 1 / _floats(g)


class MeasuredStaleness(NamedTuple):
    """Staleness as measured, and the mu_S of the geometric staleness that it would be.

    Attributes:
        mean: Mean staleness; close to g - 1 whatever the times.
        q_0: Share of updates with staleness 0.
        from_q_0: mu_S by q_0: ``1 - q_0``.
        from_variance: mu_S by the variance ``v = mu_S / (1 - mu_S)^2``. When this is well below
            ``from_q_0``, staleness is not geometric and there is less implicit momentum.
    """

    mean: float
    q_0: float
    from_q_0: float
    from_variance: float


def measure_staleness(staleness: ArrayLike) -> MeasuredStaleness:
    """Estimates mu_S in two ways from the staleness of updates.

    Args:
        staleness: Whole numbers, 0 or more, shape ``(T,)``; updates from before all groups had
            started bias it.

    Raises:
        ValueError: No updates, or a negative or non-finite staleness.
    """
    s = _floats(staleness)
    if s.size == 0 or not np.all(np.isfinite(s)) or np.any(s < 0):
        raise ValueError("staleness: give at least one update, each with a finite number >= 0")
    q_0, v = float(np.mean(s == 0)), float(s.var())
    from_variance = (2 * v + 1 - math.sqrt(4 * v + 1)) / (2 * v) if v > 0 else 0.0
    return MeasuredStaleness(
        mean=float(s.mean()), q_0=q_0, from_q_0=1 - q_0, from_variance=from_variance
    )


def total_momentum(mu_L: ArrayLike, mu_S: ArrayLike) -> Array:
    """``1 - (1 - mu_L)(1 - mu_S)``, the momentum of both filters together; shapes broadcast."""
    return 1 - (1 - _floats(mu_L)) * (1 - _floats(mu_S))


def compensated_momentum(mu: ArrayLike, mu_S: ArrayLike, *, lowest: float = -0.9) -> Array:
    """The mu_L that makes the total momentum ``mu`` in spite of ``mu_S``; shapes broadcast.

    Negative where mu_S alone exceeds mu. What would be below ``lowest`` is cut off there: no
    explicit momentum of a stable filter compensates for more. A start for tuning, not a
    substitute: the formula over-predicts on real networks (PAPER.md section 4).
    """
    wanted = 1 - (1 - _floats(mu)) / (1 - _floats(mu_S))
    return np.asarray(np.maximum(lowest, wanted))


def gain(lr: ArrayLike, mu_L: ArrayLike) -> Array:
    """``lr / (1 - mu_L)``: how far a unit gradient moves w in the end, one update's worth.

    It does not depend on mu_S: staleness delays the move and does not change its size.
    """
    return _floats(lr) / (1 - _floats(mu_L))


def effective_learning_rate(lr: ArrayLike, mu_S: ArrayLike) -> Array:
    """``lr (1 - mu_S)``: the learning rate that a filter of momentum mu_S is left with."""
    return _floats(lr) * (1 - _floats(mu_S))


def expected_path(
    w_0: ArrayLike, curvatures: ArrayLike, *, lr: float, mu_L: float, mu_S: float, num_updates: int
) -> Array:
    """E[w] on the quadratic ``sum_i lambda_i w_i^2 / 2``, when all groups start by reading w_0.

    The recursion as its two filters in series. The first starts filled with the gradient at w_0,
    since that is what a group applies that has not read anything newer.

    Args:
        w_0: Start, shape ``(n,)``.
        curvatures: lambda, shape ``(n,)``.
        lr: Learning rate.
        mu_L: Explicit momentum.
        mu_S: Implicit momentum.
        num_updates: Updates to follow.

    Returns:
        E[w_t] for t = 0 to ``num_updates``, shape ``(num_updates + 1, n)``.
    """
    w, curvature = _floats(w_0), _floats(curvatures)
    path = np.empty((num_updates + 1, *w.shape))
    path[0] = w
    gradient, velocity = curvature * w, np.zeros_like(w)
    for t in range(num_updates):
        gradient = mu_S * gradient + (1 - mu_S) * curvature * path[t]
        velocity = mu_L * velocity - lr * gradient
        path[t + 1] = path[t] + velocity
    return path


def quadratic_rate(lr: float, mu_L: float, mu_S: float, curvatures: ArrayLike) -> float:
    """The factor by which E[w] shrinks per update in the end: the largest ``|r|``.

    PAPER.md section 4 has it as ``max 1/|t|`` with ``t = 1/r``. Below 1 the mean converges.

    Args:
        lr: Learning rate.
        mu_L: Explicit momentum.
        mu_S: Implicit momentum.
        curvatures: lambda, shape ``(n,)``.
    """
    curvature = np.atleast_1d(_floats(curvatures))
    companion = np.zeros((len(curvature), 3, 3))
    companion[:, 1, 0] = companion[:, 2, 1] = 1
    companion[:, 0, 0] = 1 + mu_S + mu_L - lr * (1 - mu_S) * curvature
    companion[:, 0, 1] = -(mu_S + mu_L + mu_S * mu_L)
    companion[:, 0, 2] = mu_S * mu_L
    return float(np.abs(np.linalg.eigvals(companion)).max())


def measured_momentum(
    steps: ArrayLike, gradients: ArrayLike, *, lr: float, q_0: float = 1.0
) -> float:
    """Total momentum at work, ``median((A + lr q_0 C) / (A - B))`` over the coordinates.

    As in YellowFin's closed loop (PAPER.md section 7). The learning rate must be that of the
    filter, ``lr q_0``: with lr alone this reads mu_L, whatever the staleness.

    Args:
        steps: ``x_{t+1} - x_t`` of T consecutive updates, shape ``(T, n)`` or ``(T,)``.
        gradients: The gradient each of them applied, same shape.
        lr: Learning rate of the server's SGD.
        q_0: Share of updates with staleness 0; 1 when synchronous.

    Returns:
        The estimate; nan when nothing moved.

    Raises:
        ValueError: Fewer than two steps, or shapes that differ.
    """
    step, gradient = _floats(steps), _floats(gradients)
    if step.shape != gradient.shape or step.shape[:1] < (2,):
        raise ValueError(
            f"steps of shape {step.shape}, gradients of shape {gradient.shape}: give the same "
            "shape, with at least 2 updates"
        )
    A, C = step[1:].mean(axis=0), gradient[1:].mean(axis=0)
    A_minus_B = step[:-1].mean(axis=0)
    moved = A_minus_B != 0
    if not np.any(moved):
        return math.nan
    return float(np.median((A + lr * q_0 * C)[moved] / A_minus_B[moved]))
