"""The two tables of the issue: time to target, and work until the recommendation is good."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from omnivore_ray.search.algorithm import OmnivoreAlgorithm
from omnivore_ray.search.contract import Algorithm
from omnivore_ray.strategy import Strategy
from synthetic.play import Game, play
from synthetic.rivals import Rival
from synthetic.surface import Surface

LONGEST = 50.0
RIVAL_PROBES = 20
RIVAL_PROBES_AT_MOST = 200
TOLERANCE = 1.10
Make = Callable[[Surface, int], Algorithm]


@dataclass(frozen=True, kw_only=True)
class Case:
    """A surface and its truth."""

    surface: Surface
    best_s: float
    best: Strategy


def case(surface: Surface) -> Case:
    """Finds the truth by brute force."""
    best_s, best = surface.best_fixed()
    return Case(surface=surface, best_s=best_s, best=best)


def probe_seconds(surface: Surface, updates: int = 80) -> float:
    """Seconds of a rival's probe: 80 updates at the g at which ours begins to race."""
    paces = [surface.clock.pace(g) for g in surface.groups]
    return updates * next(pace for pace in paces if pace <= 1.6 * min(paces))


def searches() -> dict[str, Make]:
    """The searches of the first table, by name."""
    return {
        "ours": lambda surface, seed: OmnivoreAlgorithm(surface.clock.num_devices),
        "published": lambda surface, seed: OmnivoreAlgorithm.published(surface.clock.num_devices),
        "TPE": lambda surface, seed: Rival(
            "TPE", surface.groups, probe_seconds(surface), RIVAL_PROBES, seed
        ),
        "random": lambda surface, seed: Rival(
            "random", surface.groups, probe_seconds(surface), RIVAL_PROBES, seed
        ),
    }


def game(make: Make, of: Case, seed: int) -> tuple[Game, Algorithm]:
    """Plays one search on one case, for at most 50 times the best fixed strategy's time."""
    algorithm = make(of.surface, seed)
    return play(algorithm, of.surface, seed, LONGEST * of.best_s), algorithm


def fixed_ratios(cases: Sequence[Case], g: int | None) -> list[float]:
    """Momentum .9 with its best learning rate at g (None: all devices apart), over the best."""
    return [of.surface.best_fixed(g or of.surface.groups[-1], 0.9)[0] / of.best_s for of in cases]


def summary(ratios: Sequence[float]) -> str:
    """Median, 75th percentile, largest, and how many never arrived."""
    median, upper = np.percentile(ratios, [50, 75], method="inverted_cdf")
    never = sum(math.isinf(ratio) for ratio in ratios)
    return f"{median:8.2f} {upper:8.2f} {max(ratios):9.2f} {never:6d}"


def work_until_good(played: Game, of: Case) -> float:
    """Probe seconds until the recommended strategy is within 10 % of the best, and stays there."""
    since = math.inf
    for seconds, strategy in played.recommended:
        good = strategy is not None and of.surface.time_to_target(strategy) <= TOLERANCE * of.best_s
        since = (since if since < math.inf else seconds) if good else math.inf
    return since


def mean_probe_seconds(algorithm: Algorithm) -> float:
    """Mean seconds of a search's race probes."""
    seconds = [
        row["seconds"]
        for row in algorithm.decisions()
        if row["kind"] == "probe" and row["updates"] >= 80 and "timing" not in row["reason"]
    ]
    return float(np.mean(seconds))
