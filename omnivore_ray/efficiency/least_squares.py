"""Nonlinear least squares for a handful of numbers, by Levenberg and Marquardt.

========= ============================================================ ==============
symbol    meaning                                                      unit or shape
========= ============================================================ ==============
theta     numbers sought, scaled so that a change of 1 is large        shape (p,)
r         errors at theta                                              shape (n,)
J         derivative of r by theta, by forward differences             shape (n, p)
damping   each step solves (J'J + damping I) step = -J'r               number > 0
========= ============================================================ ==============
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Errors = Callable[[Array], Array]

STEP = 1e-4
_LONGEST_STEP, _SHORTEST_STEP = 2.0, 1e-5
_ENOUGH = 1e-10


def jacobian(errors: Errors, theta: Array) -> Array:
    """J at ``theta``, shape ``(n, p)``."""
    r = errors(theta)
    shifted = [errors(theta + STEP * unit) - r for unit in np.eye(len(theta))]
    return np.array(shifted).T / STEP


def minimise(errors: Errors, theta: Array, *, num_steps: int = 40) -> tuple[Array, float]:
    """Lowers the sum of squares of ``errors`` from ``theta`` to the nearest minimum.

    Args:
        errors: From theta, shape ``(p,)`` with ``p`` >= 0, to r, shape ``(n,)``; all finite.
        theta: Where to start, shape ``(p,)``.
        num_steps: At most this many steps are tried.

    Returns:
        The minimiser and the sum of squares there.
    """
    r = errors(theta)
    if len(theta) == 0:
        return theta, float(r @ r)
    damping, J = 1e-3, jacobian(errors, theta)
    for _ in range(num_steps):
        step = -np.linalg.solve(J.T @ J + damping * np.eye(len(theta)), J.T @ r)
        step = np.clip(step, -_LONGEST_STEP, _LONGEST_STEP)
        if np.abs(step).max() < _SHORTEST_STEP:
            break
        tried = errors(theta + step)
        gained = float(r @ r - tried @ tried)
        if gained > 0:
            theta, r, damping = theta + step, tried, damping / 5
            if gained < _ENOUGH * (1 + float(r @ r)):
                break
            J = jacobian(errors, theta)
        else:
            damping *= 5
    return theta, float(r @ r)
