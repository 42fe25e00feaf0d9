"""Which strategies are worth asking for: grids, what cannot win, and steps around a strategy."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace

from omnivore_ray.strategy import Strategy

MIN_MOMENTUM, MAX_MOMENTUM = -0.75, 0.97
CAREFUL_MOMENTUM = 0.9
#: The best gain falls as g^-0.65 (PAPER section 4: the stable one falls 1.4, 1.06, .77 at 2, 4, 8).
GAIN_FALLS = 0.65
#: The best momentum falls by about this much for every doubling of g.
MOMENTUM_FALLS = 0.1


def group_ladder(num_devices: int) -> tuple[int, ...]:
    """The numbers of groups to consider: powers of two below ``num_devices``, and that itself."""
    powers = [2**i for i in range(num_devices.bit_length()) if 2**i < num_devices]
    return (*powers, num_devices)


def safe(strategy: Strategy, diverged: Iterable[Strategy]) -> bool:
    """Whether ``strategy`` is milder than everything that diverged at its number of groups."""
    return not any(
        strategy.groups == known.groups
        and strategy.learning_rate >= known.learning_rate
        and strategy.momentum >= known.momentum
        for known in diverged
    )


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
    """Another momentum at the same quasi-static gain, learning_rate / (1 - momentum).

    The gain, not the learning rate, is what stays best as momentum changes (PAPER section 4).
    """
    gain = strategy.learning_rate / (1 - strategy.momentum)
    return replace(strategy, momentum=momentum, learning_rate=gain * (1 - momentum))


def momentum_step(strategy: Strategy, offset: float) -> Strategy | None:
    """A step along momentum; near 1 it halves the distance instead; None beyond the range."""
    momentum = strategy.momentum + offset
    if offset > 0 and momentum > CAREFUL_MOMENTUM:
        momentum = (1 + strategy.momentum) / 2
    if not MIN_MOMENTUM <= momentum <= MAX_MOMENTUM:
        return None
    return with_momentum(strategy, momentum)


def rate_step(strategy: Strategy, offset: float) -> Strategy:
    """A step along the logarithm of the learning rate."""
    return replace(strategy, learning_rate=strategy.learning_rate * math.exp(offset))


def groups_step(strategy: Strategy, groups: int, momentum_too: bool = True) -> Strategy:
    """Another number of groups, with the gain and the momentum that this suggests."""
    doublings = math.log2(groups / strategy.groups)
    rate = strategy.learning_rate * 2 ** (-GAIN_FALLS * doublings)
    moved = replace(strategy, groups=groups, learning_rate=rate)
    if not momentum_too:
        return moved
    momentum = strategy.momentum - MOMENTUM_FALLS * doublings
    return with_momentum(moved, min(max(momentum, MIN_MOMENTUM), MAX_MOMENTUM))


def alike(a: Strategy, b: Strategy) -> bool:
    """Whether two strategies are too close to tell apart by a probe."""
    return (
        a.groups == b.groups
        and abs(math.log(a.learning_rate / b.learning_rate)) < 0.25
        and abs(a.momentum - b.momentum) < 0.08
    )
