"""Plays a search against a surface, and reports when it got where."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from omnivore_ray.search.contract import Algorithm
from omnivore_ray.strategy import Request, Strategy
from synthetic.surface import State, Surface


@dataclass(frozen=True, kw_only=True)
class Game:
    """What happened: ``seconds`` to the target (inf: given up), the share spent on probes, and
    (probe seconds, recommended strategy) after every request."""

    seconds: float
    probe_seconds: float
    discarded_seconds: float
    recommended: tuple[tuple[float, Strategy | None], ...]
    failure: str | None


def play(
    algorithm: Algorithm,
    surface: Surface,
    seed: int,
    limit_s: float = math.inf,
    each: Callable[[Request, float], None] | None = None,
) -> Game:
    """Asks and tells until the target, the limit, or the end of the search."""
    rng = np.random.default_rng(seed)
    states: dict[str | None, State] = {None: State()}
    spent = probing = 0.0
    recommended = []
    seconds = math.inf
    trained: dict[str | None, float] = {None: 0.0}
    while spent < limit_s and (request := algorithm.ask()) is not None:
        outcome, after = surface.run(request, states[request.resume_from], rng, limit_s - spent)
        spent += outcome.seconds
        if request.kind == "probe":
            probing += outcome.seconds
        if outcome.ok:
            name = f"{len(states)}"
            states[name] = after
            trained[name] = trained[request.resume_from] + outcome.seconds
            outcome = replace(outcome, checkpoint_path=name)
        if each is not None:
            each(request, spent)
        algorithm.tell(request, outcome)
        recommended.append((probing, algorithm.best))
        if outcome.status == "target_reached":
            seconds = spent
            break
    kept = trained[outcome.checkpoint_path] if outcome.ok else 0.0
    return Game(
        seconds=seconds,
        probe_seconds=probing,
        discarded_seconds=spent - kept,
        recommended=tuple(recommended),
        failure=algorithm.failure,
    )
