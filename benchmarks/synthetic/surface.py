"""A training run as a formula: progress, a noise ball, a cliff, and seconds from an event queue.

Notation (issue 2, item 3):
    g        groups                          lr, mu   learning rate, momentum
    L        progress the target asks for    x, e     state: progress, height of the noise ball
    u        lr / ((1 - mu) l1 g^-kap): step size relative to the best one at that g
    m*(g)    clip(m1 - gam log2 g, -.6, .95): best momentum at that g
    r        progress an update, u e^(1-u) exp(-((mu-m*)/w)^2/2) / (1 + P (1 + A exp(-x/s)))
             with P = pi (g-1)^p, s = .05 L + 10
    loss     (1 + x/20)^-beta + e;  target (1 + L/20)^-beta + c;  u > u_div diverges

Two liberties. The recursion x += r is followed as the flow dx/dn = r, which has a closed form (the
Lambert function); `tests/search/test_surface.py` holds it to the recursion. Observed losses carry
relative noise: loss * (1 + sd * normal) an update, as mini-batch losses do.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from omnivore_ray.strategy import Outcome, Request, Strategy
from synthetic.clock import Clock

Array = NDArray[np.float64]
DIVERGED_AFTER = 25
MOST_STEPS = 500
CURVE_POINTS = 100


@dataclass(frozen=True, slots=True)
class State:
    """Where training stands: progress and height of the noise ball."""

    x: float = 0.0
    e: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Surface:
    """One draw of the surface; the parameters are those of the module's notation."""

    name: str
    L: float
    l1: float
    kap: float
    m1: float
    gam: float
    w: float
    pi: float
    p: float
    A: float
    u_div: float
    beta: float
    c: float
    noise_sd: float
    clock: Clock = field(repr=False)

    @property
    def groups(self) -> tuple[int, ...]:
        """The numbers of groups there are: powers of two up to the number of devices."""
        return tuple(2**i for i in range(int(math.log2(self.clock.num_devices)) + 1))

    @property
    def target(self) -> float:
        """The loss at which the run is over."""
        return float((1 + self.L / 20) ** -self.beta + self.c)

    def best_momentum(self, g: int) -> float:
        """m*(g)."""
        return float(np.clip(self.m1 - self.gam * math.log2(g), -0.6, 0.95))

    def step(self, strategy: Strategy) -> float:
        """u: the step size relative to the best one."""
        scale = self.l1 * strategy.groups**-self.kap
        return strategy.learning_rate / ((1 - strategy.momentum) * scale)

    def learning_rate(self, g: int, u: float, mu: float) -> float:
        """The inverse of `step`."""
        return u * (1 - mu) * self.l1 * float(g) ** -self.kap

    def speed(self, g: int, u: Array | float, mu: float) -> Array:
        """Progress an update before the penalty of asynchrony."""
        off = (mu - self.best_momentum(g)) / self.w
        return np.asarray(u * np.exp(1 - np.asarray(u)) * math.exp(-(off**2) / 2))

    def progress(self, g: int, speed: float, x: float, n: Array) -> Array:
        """x after ``n`` more updates, shape of ``n``."""
        P, s = self.pi * (g - 1) ** self.p, 0.05 * self.L + 10
        if P * self.A == 0:
            return x + speed * n / (1 + P)
        y = (1 + P) * x - P * self.A * s * math.exp(-x / s) + speed * n
        v = _lambert(P * self.A / (1 + P) * np.exp(-y / ((1 + P) * s)))
        return y / (1 + P) + s * v

    def updates_to(self, g: int, speed: Array, x: Array) -> Array:
        """Updates from the start to progress ``x``."""
        P, s = self.pi * (g - 1) ** self.p, 0.05 * self.L + 10
        return ((1 + P) * x + P * self.A * s * (1 - np.exp(-x / s))) / speed

    def noise_ball(self, u: float, e: float, n: Array) -> Array:
        """e after ``n`` more updates, shape of ``n``."""
        return self.c * u + (e - self.c * u) * (1 - min(1.0, u / 20)) ** n

    def loss(self, x: Array, e: Array) -> Array:
        """The true training loss."""
        return (1 + x / 20) ** -self.beta + e

    def run(
        self, request: Request, state: State, rng: np.random.Generator, limit_s: float = math.inf
    ) -> tuple[Outcome, State]:
        """Carries out one request from ``state``; ends at its budget, the target or ``limit_s``."""
        strategy, g = request.strategy, request.strategy.groups
        u, pace = self.step(strategy), math.exp(rng.normal(0, 0.01))
        seconds_of = lambda n: pace * self.clock.seconds(g, n)  # noqa: E731
        if u > self.u_div:
            n = min(DIVERGED_AFTER, request.budget_updates or DIVERGED_AFTER)
            took = float(seconds_of(np.array([n]))[0])
            return Outcome(status="diverged", updates=n, seconds=took, reason="loss is inf"), state
        budget_s = min(request.budget_s or math.inf, limit_s)
        updates = self.clock.updates(g, budget_s / pace)
        updates = max(1, min(updates, request.budget_updates or updates))
        edges = np.unique(np.linspace(0, updates, min(updates, CURVE_POINTS) + 1).astype(int))
        speed = float(self.speed(g, u, strategy.momentum))

        def true_loss(n: Array) -> Array:
            return self.loss(self.progress(g, speed, state.x, n), self.noise_ball(u, state.e, n))

        hit = np.nonzero(true_loss(edges.astype(float)) <= self.target)[0]
        status = "completed"
        if hit.size:
            low, high = int(edges[max(hit[0] - 1, 0)]), int(edges[hit[0]])
            while high - low > 1:
                middle = (low + high) // 2
                inside = true_loss(np.array([float(middle)]))[0] <= self.target
                low, high = (low, middle) if inside else (middle, high)
            updates, status = max(high, 1), "target_reached"
            edges = np.append(edges[edges < updates], updates)
        ends, lengths = edges[1:], np.diff(edges)
        middles = ends - (lengths - 1) / 2
        noise = 1 + self.noise_sd / np.sqrt(lengths) * rng.standard_normal(len(ends))
        losses, seconds = true_loss(middles) * noise, seconds_of(ends)
        all_of_it = np.array([float(updates)])
        after = State(
            float(self.progress(g, speed, state.x, all_of_it)[0]),
            float(self.noise_ball(u, state.e, all_of_it)[0]),
        )
        outcome = Outcome(
            status=status,  # type: ignore[arg-type]
            updates=updates,
            seconds=float(seconds[-1]),
            loss=float(losses[-max(1, len(losses) // 10) :].mean()),
            curve=tuple(zip(map(int, ends), map(float, seconds), map(float, losses), strict=True)),
        )
        return outcome, after

    def time_to_target(self, strategy: Strategy) -> float:
        """Seconds a fixed strategy needs from the start; inf if it never arrives."""
        u = self.step(strategy)
        return float(self._times(strategy.groups, np.array([u]), strategy.momentum)[0])

    def _times(self, g: int, u: Array, mu: float) -> Array:
        """Seconds to the target for each relative step size: the least fixed point, from below."""
        speed = self.speed(g, u, mu)
        n = np.zeros_like(u)
        with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
            for _ in range(MOST_STEPS):
                e = self.c * u * (1 - (1 - np.minimum(1, u / 20)) ** n)
                room = self.target - e
                x = np.where(room > 0, 20 * (np.abs(room) ** (-1 / self.beta) - 1), np.inf)
                before, n = n, self.updates_to(g, speed, x)
                if np.all((np.abs(n - before) < 0.01) | ~np.isfinite(n)):
                    break
            n = np.where((u <= self.u_div) & np.isfinite(n), np.ceil(n), np.inf)
        return self.clock.seconds(g, n)

    def best_fixed(self, g: int | None = None, mu: float | None = None) -> tuple[float, Strategy]:
        """The fastest fixed strategy, by brute force over g and a grid of u, refined twice.

        The rate is a product of a function of u and one of mu, and every u is reachable at every
        mu, so the best momentum is m*(g) whatever u is: only u needs a search.
        """
        best = (math.inf, Strategy(learning_rate=1e-6))
        for groups in self.groups if g is None else (g,):
            momentum = self.best_momentum(groups) if mu is None else mu
            u = np.geomspace(1e-3, self.u_div, 150)
            for _ in range(3):
                times = self._times(groups, u, momentum)
                i = int(np.argmin(times))
                if times[i] < best[0]:
                    rate = self.learning_rate(groups, float(u[i]), momentum)
                    best = (
                        float(times[i]),
                        Strategy(groups=groups, learning_rate=rate, momentum=momentum),
                    )
                u = np.geomspace(u[max(i - 1, 0)], u[min(i + 1, len(u) - 1)], 30)
        return best


def _lambert(z: Array) -> Array:
    """v with v e^v = z, for z >= 0, by Newton's method from log(1 + z)."""
    v = np.log1p(z)
    for _ in range(8):
        v = v - (v - z * np.exp(-v)) / (1 + v)
    return v
