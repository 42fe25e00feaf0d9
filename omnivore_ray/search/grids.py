"""Which strategies are worth asking for: grids, what cannot win, and steps around a winner."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from omnivore_ray.strategy import Strategy

MIN_MOMENTUM, MAX_MOMENTUM = -0.9, 0.97


def group_ladder(num_devices: int) -> tuple[int, ...]:
    """The numbers of groups to consider: powers of two up to ``num_devices``, and that itself."""
    ladder = []
    g = 1
    while g < num_devices:
        ladder.append(g)
        g *= 2
    return (*ladder, num_devices)


def dominates(worse: Strategy, diverged: Strategy) -> bool:
    """Whether ``worse`` is at least as bold as one that diverged, at the same groups."""
    return (
        worse.groups == diverged.groups
        and worse.learning_rate >= diverged.learning_rate
        and worse.momentum >= diverged.momentum
    )


def safe(strategy: Strategy, diverged: Iterable[Strategy]) -> bool:
    """Whether nothing that diverged says that ``strategy`` would too."""
    return not any(dominates(strategy, known) for known in diverged)


def published_grid(
    groups: int, learning_rate: float, momentum: float, momenta: Sequence[float]
) -> list[Strategy]:
    """The authors' grid around a previous best: five probes after pruning (PAPER section 5).

    ``momenta`` x (the learning rate, a tenth of it), without the same learning rate at a larger
    momentum and the lower one at a smaller momentum.
    """
    same = [(learning_rate, mu) for mu in momenta if mu <= momentum]
    lower = [(learning_rate / 10, mu) for mu in momenta if mu >= momentum]
    return [
        Strategy(groups=groups, learning_rate=rate, momentum=mu) for rate, mu in (*same, *lower)
    ]


def with_momentum(strategy: Strategy, momentum: float) -> Strategy:
    """Another momentum at the same quasi-static gain learning_rate / (1 - momentum).

    PAPER section 4: the gain, not the learning rate, is what stays best as momentum changes.
    """
    momentum = min(max(momentum, MIN_MOMENTUM), MAX_MOMENTUM)
    gain = strategy.learning_rate / (1 - strategy.momentum)
    return replace(strategy, momentum=momentum, learning_rate=gain * (1 - momentum))
