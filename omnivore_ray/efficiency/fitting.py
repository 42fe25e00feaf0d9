"""The hardware model's scalars from two or three short timing runs.

Each run with g groups gives seconds per update, and perhaps the seconds of its parts. A part that
was measured pins its scalar (the median over the runs). The rest are fitted to the whole, by least
squares on log seconds per update, so that a run of 5 ms counts as much as one of 5 s.

What is assumed where the runs cannot tell:

* The devices always take time; the link and the head may take none. Of the sets of scalars that
  are not zero, the smallest is taken whose error is within ``PARSIMONY`` of the best, so a gain
  that is no larger than the noise adds no term; no more scalars are fitted than there are runs.
  In a tie the network is blamed before the head server.
* From seconds per update alone the parameter server cannot be told from the head server (both are
  one visit per update): its time is 0 unless it was measured, and then belongs to ``t_head``.
* ``cv``, ``speeds``, ``service_times`` and ``sends_when_ready`` are given, not fitted.

============== ============================================================ ==============
symbol         meaning                                                      unit or shape
============== ============================================================ ==============
theta          log of the scalars being fitted, of t_compute, t_link,       shape (p,)
               t_head
r              log HE(g; theta) - log of the measured seconds per update    shape (n,)
============== ============================================================ ==============
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from omnivore_ray.efficiency.hardware import HardwareModel
from omnivore_ray.efficiency.least_squares import STEP, minimise

PARSIMONY = 0.005
_FREE = ("t_compute", "t_link", "t_head")
_STARTS = (0.8, 0.1)
_NO_INFLUENCE = 0.01
_TINY_S = 1e-12

Array = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True, slots=True)
class Timing:
    """One timing run; each part is a mean per update, or None when it was not measured.

    Attributes:
        g: Number of groups.
        seconds_per_update: Seconds from one update to the next, the whole cluster's.
        compute_s: From a group's lease to its slowest member's result, without transfers.
        link_s: The shared link's busy time, all the group's copies down and up.
        head_s: The head server's busy time.
        server_s: The parameter server's busy time.
    """

    g: int
    seconds_per_update: float
    compute_s: float | None = None
    link_s: float | None = None
    head_s: float | None = None
    server_s: float | None = None

    def __post_init__(self) -> None:
        if not (math.isfinite(self.seconds_per_update) and self.seconds_per_update > 0):
            raise ValueError(
                f"seconds_per_update={self.seconds_per_update!r}: give a finite number above 0"
            )
        for name in ("compute_s", "link_s", "head_s", "server_s"):
            value = getattr(self, name)
            if value is not None and not (math.isfinite(value) and value >= 0):
                raise ValueError(f"{name}={value!r}: give a finite number, 0 or more, or None")


@dataclass(frozen=True, kw_only=True, slots=True)
class HardwareFit:
    """A fitted model and how far to trust it.

    Attributes:
        model: The model.
        residual: Root mean square of log(predicted / measured) over the runs: a relative error.
        undetermined: The scalars that these runs say little about, in the order of the model's
            attributes: left at 0, or of no influence on any run.
    """

    model: HardwareModel
    residual: float
    undetermined: tuple[str, ...]


def fit(
    timings: Sequence[Timing],
    *,
    num_devices: int,
    cv: float = 0.0,
    speeds: tuple[float, ...] = (),
    service_times: tuple[float, ...] = (),
    sends_when_ready: bool = False,
) -> HardwareFit:
    """Fits t_compute, t_link, t_head and t_server; none is ever negative.

    Args:
        timings: At least one run; best are g = 1, g = N and one between, for a model fitted to
            small g alone knows nothing of the saturation beyond.
        num_devices: N.
        cv: As in `HardwareModel`.
        speeds: As in `HardwareModel`; t_compute is then for speed 1 in that unit.
        service_times: As in `HardwareModel`.
        sends_when_ready: As in `HardwareModel`.

    Returns:
        The model, its error, and what the runs left open.

    Raises:
        ValueError: No timings, or a g outside 1 to N.
    """
    if not timings:
        raise ValueError("timings=[]: give at least one timing run")
    base = HardwareModel(
        num_devices=num_devices,
        t_compute=1.0,
        cv=cv,
        speeds=speeds,
        service_times=service_times,
        sends_when_ready=sends_when_ready,
    )
    pinned = _pinned(base, timings)
    free = [name for name in _FREE if name not in pinned]
    subsets = [
        subset
        for size in range(min(len(free), len(timings)) + 1)
        for subset in combinations(free, size)
        if "t_compute" in (*subset, *pinned)
    ]
    fits = [_fit_subset(base, pinned, subset, timings) for subset in subsets]
    least = min(residual for _, residual in fits)
    model, residual = next(each for each in fits if each[1] <= least + PARSIMONY)
    undetermined = tuple(name for name in free if _influence(model, name, timings) < _NO_INFLUENCE)
    return HardwareFit(model=model, residual=residual, undetermined=undetermined)


def _pinned(base: HardwareModel, timings: Sequence[Timing]) -> dict[str, float]:
    """The scalars that measured parts give, each by the part that a model has of it.

    With unequal groups the parts depend on how often each group updates, so on the scalars; a
    few repetitions settle that.
    """
    model, pinned = base, dict[str, float]()
    for _ in range(4):
        values: dict[str, list[float]] = {}
        for timing in timings:
            for name, part, per_scalar in (
                ("t_compute", timing.compute_s, model.compute_seconds(timing.g) / model.t_compute),
                ("t_link", timing.link_s, model.copies_per_update(timing.g)),
                ("t_head", timing.head_s, 1.0),
                ("t_server", timing.server_s, 1.0),
            ):
                if part is not None:
                    values.setdefault(name, []).append(part / per_scalar)
        pinned = {name: float(np.median(each)) for name, each in values.items()}
        model = _changed(model, {name: max(_TINY_S, value) for name, value in pinned.items()})
    return pinned


def _fit_subset(
    base: HardwareModel,
    pinned: dict[str, float],
    subset: Sequence[str],
    timings: Sequence[Timing],
) -> tuple[HardwareModel, float]:
    """The best model in which only ``subset`` and ``pinned`` are not zero, and its error."""
    g = np.array([timing.g for timing in timings])
    measured = np.log([timing.seconds_per_update for timing in timings])

    def model(theta: Array) -> HardwareModel:
        scalars = dict(zip(subset, np.exp(theta).tolist(), strict=True))
        return _changed(base, {"t_compute": 0.0} | pinned | scalars)

    def errors(theta: Array) -> Array:
        return np.log(model(theta).seconds_per_update(g)) - measured

    ceilings = _ceilings(base, timings)
    best_theta, least = np.zeros(len(subset)), math.inf
    for shares in product(_STARTS, repeat=len(subset)):
        start = np.log([share * ceilings[n] for share, n in zip(shares, subset, strict=True)])
        theta, square = minimise(errors, start)
        if square < least - 1e-12:
            best_theta, least = theta, square
    return model(best_theta), math.sqrt(least / len(timings))


def _ceilings(base: HardwareModel, timings: Sequence[Timing]) -> dict[str, float]:
    """Above these a scalar alone would make a run slower than it was."""
    seconds = [timing.seconds_per_update for timing in timings]
    pairs = list(zip(timings, seconds, strict=True))
    return {
        "t_compute": min(s * t.g / base.compute_seconds(t.g) for t, s in pairs),
        "t_link": min(s / base.copies_per_update(t.g) for t, s in pairs),
        "t_head": min(seconds),
    }


def _influence(model: HardwareModel, name: str, timings: Sequence[Timing]) -> float:
    """How much the runs' log seconds move with the log of a scalar, at most over the runs."""
    g = np.array([timing.g for timing in timings])
    value = getattr(model, name)
    if value == 0:
        return 0.0
    moved = _changed(model, {name: value * math.exp(STEP)}).seconds_per_update(g)
    return float(np.max(np.log(moved / model.seconds_per_update(g)))) / STEP


def _changed(model: HardwareModel, scalars: Mapping[str, float]) -> HardwareModel:
    changes: dict[str, Any] = dict(scalars)
    return replace(model, **changes)
