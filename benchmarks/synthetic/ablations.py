"""Our search with one step switched off: what each step is worth."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from types import ModuleType
from typing import Any

from omnivore_ray.search import cold_start, grids, rounds
from omnivore_ray.search.rounds import Rounds


@contextmanager
def _with(owner: ModuleType | type, **values: Any) -> Iterator[None]:
    """Sets names of a module or class for a while."""
    before = {name: getattr(owner, name) for name in values}
    for name, value in values.items():
        setattr(owner, name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(owner, name, value)


def _nothing(*_: Any) -> Iterator[Any]:
    yield from ()


def _no_peak(xs: Sequence[float], ys: Sequence[float]) -> float:
    return xs[max(range(len(xs)), key=lambda i: ys[i])]


def _initial_state(self: cold_start.ColdStart) -> tuple[str | None, float]:
    return None, 0.0


def _lower_only(self: Rounds, turn: int) -> list[rounds.Challenger]:
    return _CHALLENGERS(self, 1)[:1]


def _others_only(self: Rounds, turn: int) -> list[rounds.Challenger]:
    return _CHALLENGERS(self, turn * rounds.OTHER_EVERY)[1:]


def _long_stretch(self: Rounds, race_s: float) -> float:
    return 1e9


_CHALLENGERS = Rounds._challengers
_same_rate = {"GAIN_FALLS": 0.0, "MOMENTUM_FALLS": 0.0}

ABLATIONS: dict[str, Callable[[], AbstractContextManager[None]]] = {
    "ours": nullcontext,
    "race starts at sync, not by HE": lambda: _with(cold_start, ENOUGH=1e9),
    "race starts at HE <= 2.5 x": lambda: _with(cold_start, ENOUGH=2.5),
    "no interpolation at the peak": lambda: _with(cold_start, peak=_no_peak),
    "no final learning-rate race": lambda: _with(cold_start, RATE_STEP=1e-9),
    "no second momentum race": lambda: _with(cold_start, FAR=1e9),
    "always a second momentum race": lambda: _with(cold_start, FAR=2),
    "no momentum race": lambda: _with(cold_start.ColdStart, _tune_momentum=_nothing),
    "no negative momentum": lambda: _with(grids, MIN_MOMENTUM=0.0),
    "no race over groups": lambda: _with(cold_start.ColdStart, _climb_groups=_nothing),
    "same rate, momentum at another g": lambda: _with(grids, **_same_rate),
    "the fastest learning rate taken": lambda: _with(cold_start, BELOW_PEAK=1.0),
    "no bonus for more groups": lambda: _with(cold_start, EARLY_PENALTY=0.0),
    "more groups only if HE falls 10 %": lambda: _with(cold_start, MUST_FALL_TO=0.9),
    "never gives up on a g": lambda: _with(cold_start, LEARNS=-1e9),
    "state of the probes not kept": lambda: _with(cold_start.ColdStart, furthest=_initial_state),
    "no rounds": lambda: _with(Rounds, _stretch_seconds=_long_stretch),
    "rounds: lower rate only": lambda: _with(Rounds, _challengers=_lower_only),
    "rounds: other neighbours only": lambda: _with(Rounds, _challengers=_others_only),
    "rounds: no penalty for slowness": lambda: _with(Rounds, _penalty=lambda *_: 0.0),
    "rounds: switch at any gain": lambda: _with(rounds, CLEAR=0.0),
}
