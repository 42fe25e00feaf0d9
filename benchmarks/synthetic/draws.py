"""Draws of surfaces, with the classes of the issue forced by rejection."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from synthetic.clock import draw_clock
from synthetic.surface import Surface

CLASSES = ("interior", "sync best", "async best", "cliff", "near-equal", "any")


def draw(rng: np.random.Generator, L: float, name: str = "any") -> Surface:
    """One surface with the issue's distributions, of no particular class."""
    return Surface(
        name=name,
        L=L,
        l1=10 ** rng.uniform(-2, 0.5),
        kap=rng.uniform(0.3, 1),
        m1=rng.uniform(0.3, 0.9),
        gam=rng.uniform(0, 0.3),
        w=rng.uniform(0.25, 0.6),
        pi=10 ** rng.uniform(-2.5, -0.3),
        p=rng.uniform(0.7, 1),
        A=float(rng.choice([0, 2, 5])),
        u_div=rng.uniform(2.2, 4),
        beta=rng.uniform(0.4, 1),
        c=10 ** rng.uniform(-3.5, -2.3),
        noise_sd=10 ** rng.uniform(-1.3, -0.5),
        clock=draw_clock(rng),
    )


def all_diverge(rng: np.random.Generator, L: float) -> Surface:
    """A surface on which every learning rate that ours would ask for diverges."""
    return replace(draw(rng, L, "all diverge"), l1=1e-7)


def belongs(surface: Surface, kind: str) -> bool:
    """Whether a draw is of a class.

    "cliff": the best step is within 2.4 times of divergence. "near-equal": two numbers of groups
    at least four apart whose best times differ by less than 5 %.
    """
    if kind == "any":
        return True
    if kind == "cliff":
        return surface.u_div < 2.4
    times = {g: surface.best_fixed(g)[0] for g in surface.groups}
    best = min(times, key=times.__getitem__)
    if kind == "sync best":
        return best == 1
    if kind == "async best":
        return best == surface.groups[-1]
    if kind == "near-equal":
        return any(
            times[g] < 1.05 * times[best] and max(g, best) >= 4 * min(g, best) for g in times
        )
    return 1 < best < surface.groups[-1]


def surfaces(count: int, seed: int, L: float) -> list[Surface]:
    """``count`` surfaces, the classes in turn."""
    out = []
    for i in range(count):
        kind = CLASSES[i % len(CLASSES)]
        rng = np.random.default_rng((seed, i))
        while not belongs(surface := draw(rng, L, kind), kind):
            pass
        out.append(surface)
    return out
