"""Hardware efficiency: seconds per update as a function of the number of compute groups.

N devices are dealt into g groups. In a cycle, a group's members compute their shares of one batch
at the same time; when the slowest is done, each member's copy of the backbone passes the link
that all groups share (down and up, counted as one visit); then the group visits the head server
and the parameter server, and starts again. With ``sends_when_ready`` a member's copy goes as soon
as that member is done, so that early ones use the link while late ones compute. Link and servers
serve one visit at a time, in order of arrival. This refines PAPER.md section 3 in three ways: the
link is shared, the slowest member counts, and groups that meet at a busy link or server wait.

    bound(g) = max(t_head, t_server, k t_link, T / g)
    HE(g)    = bound(g) + w (queue(g) - bound(g))
    T = Z + D,  D = k t_link + t_head + t_server,  w = min(1, sd(Z) / D)

``bound`` is exact when nothing varies: the groups fall into lockstep and never meet. ``queue`` is
mean value analysis of g customers in a closed network with constant service times (Reiser and
Lavenberg 1980; a customer in service has half its service left), right when arrivals are random.
The weight w says which case applies: arrivals are random once the computing time varies by as
much as the service that it could collide with.

Unequal groups (g does not divide N, or unequal devices) differ in T; then ``T / g`` is
``1 / sum_j(1 / T_j)``, and k and Z are the means over updates. Devices share a batch in proportion
to speed, so that a group of total speed S computes for ``Z = m(k) t_compute / S``. Members that
send when ready hide part of that behind their own group's copies, and
``Z = max(m(k) t_compute / S - (k - 1) t_link, f(k) t_compute / S)`` is what is left.

============= ============================================================= ==================
symbol        meaning                                                       unit or shape
============= ============================================================= ==================
N             devices (``num_devices``)                                     whole number
g             compute groups                                                1 to N
k             devices of a group, N/g when equal                            whole number
t_compute     one batch on one device of speed 1: total work over speed     s
t_link        one device's copy of the backbone, down and up                s
t_head        head server, one batch                                        s
t_server      parameter server, one update                                  s
speeds        speed of each device in any unit; 1 when not given            shape (N,)
cv            sd over mean of one device's computing time                   number >= 0
m(k), f(k)    E[max], E[min] of k computing times, over their mean          numbers
              (stragglers.py)
Z, D          a group's computing time, and its service time, per cycle     s
alpha, beta   a transfer's fixed cost, and its cost per byte                s, s/byte
HE(g)         seconds per update                                            s
============= ============================================================= ==================
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from heapq import heapreplace
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from omnivore_ray.efficiency.stragglers import slowest_of

Limit = Literal["the devices", "the network", "the head server", "the parameter server"]


class _Cycle(NamedTuple):
    """A group's cycle in seconds, and its copies over the link; means over the updates."""

    compute: float
    compute_sd: float
    hidden: float
    copies: float
    total: float


@dataclass(frozen=True, kw_only=True, slots=True)
class HardwareModel:
    """HE(g) of one cluster and one workload. The module's docstring has the formulas.

    Attributes:
        num_devices: N.
        t_compute: Mean seconds of one batch on one device of speed 1.
        t_link: Seconds of one device's copy of the backbone, down and up.
        t_head: Seconds of one batch on the head server; 0 without one.
        t_server: Seconds of one update on the parameter server.
        cv: Standard deviation of one device's computing time over its mean; gamma distributed,
            so 1 is exponential.
        speeds: Relative speed of each device, shape (N,); empty means 1 for each.
        service_times: Measured computing times of a device in any unit, equally likely; when
            given they replace ``cv``.
        sends_when_ready: Whether a member's copy passes the link as soon as that member is done,
            rather than when the slowest of its group is.
    """

    num_devices: int
    t_compute: float
    t_link: float = 0.0
    t_head: float = 0.0
    t_server: float = 0.0
    cv: float = 0.0
    speeds: tuple[float, ...] = ()
    service_times: tuple[float, ...] = ()
    sends_when_ready: bool = False

    def __post_init__(self) -> None:
        if self.num_devices < 1:
            raise ValueError(f"num_devices={self.num_devices!r}: give at least 1")
        for name in ("t_compute", "t_link", "t_head", "t_server", "cv"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value >= 0):
                raise ValueError(f"{name}={value!r}: give a finite number, 0 or more")
        if self.t_compute + self.t_link + self.t_head + self.t_server == 0:
            raise ValueError(f"t_compute={self.t_compute!r}: give at least one time above 0")
        if self.speeds and len(self.speeds) != self.num_devices:
            raise ValueError(
                f"speeds={self.speeds!r}: give one per device, {self.num_devices} in all"
            )
        for name in ("speeds", "service_times"):
            values = getattr(self, name)
            if not all(math.isfinite(value) and value > 0 for value in values):
                raise ValueError(f"{name}={values!r}: give finite numbers above 0")

    def seconds_per_update(self, g: ArrayLike) -> NDArray[np.float64]:
        """HE(g).

        Args:
            g: Numbers of groups, each a whole number from 1 to N, any shape.

        Returns:
            Seconds per update, shape of ``g``.

        Raises:
            ValueError: A number of groups is not a whole number from 1 to N.
        """
        groups, counts = self._checked(g)
        return np.array([self._with_queues(count) for count in counts]).reshape(groups.shape)

    def published_seconds_per_update(self, g: ArrayLike) -> NDArray[np.float64]:
        """The paper's own HE(g), for comparison: all groups use the link at once, none waits.

        ``max(t_head, (max(t_compute/k, k t_link) + t_head) / g)`` with ``k = N/g`` (PAPER.md
        section 3), for devices of equal speed.

        Raises:
            ValueError: A number of groups is not a whole number from 1 to N.
        """
        groups, _ = self._checked(g)
        k = self.num_devices / groups
        backbone = np.maximum(self.t_compute / k, k * self.t_link)
        return np.maximum(self.t_head, (backbone + self.t_head) / groups)

    def limit(self, g: int) -> Limit:
        """Which part sets the pace with ``g`` groups: the largest term of ``bound(g)``.

        "the devices" means that nothing is saturated, so that more groups would help.
        """
        self._checked(g)
        terms = self._terms(g, self._cycle(g))
        return max(terms, key=lambda name: terms[name])

    def saturating_groups(self, tolerance: float = 0.02) -> int:
        """The smallest g past which more groups cannot help.

        Args:
            tolerance: Gains in seconds per update up to this share do not count as help.

        Returns:
            The smallest g whose HE is within ``tolerance`` of the least HE of any number of
            groups: N when the devices are the limit throughout, 1 when there is also nothing
            to wait for (neither jitter nor link nor servers).
        """
        groups = np.arange(1, self.num_devices + 1)
        seconds = self.seconds_per_update(groups)
        return int(groups[np.argmax(seconds <= (1 + tolerance) * seconds.min())])

    def compute_seconds(self, g: int) -> float:
        """Seconds a group computes per update, waiting for its slowest member included (Z)."""
        self._checked(g)
        return self._cycle(g).compute

    def copies_per_update(self, g: int) -> float:
        """Copies of the backbone that pass the shared link per update (k)."""
        self._checked(g)
        return self._cycle(g).copies

    def _with_queues(self, g: int) -> float:
        cycle = self._cycle(g)
        services = (cycle.copies * self.t_link, self.t_head, self.t_server)
        bound = max(self._terms(g, cycle).values())
        busy = sum(services)
        if g == 1 or busy == 0:
            return bound
        randomness = min(1.0, cycle.compute_sd / busy)
        queue = max(bound, _mean_value_analysis(g, cycle.compute - cycle.hidden, services))
        return bound + randomness * (queue - bound)

    def _terms(self, g: int, cycle: _Cycle) -> dict[Limit, float]:
        return {
            "the head server": self.t_head,
            "the network": cycle.copies * self.t_link,
            "the parameter server": self.t_server,
            "the devices": cycle.total / g,
        }

    def _cycle(self, g: int) -> _Cycle:
        sizes, speeds = deal(self.speeds or (1.0,) * self.num_devices, g)
        extremes = np.array([slowest_of(int(k), self.cv, self.service_times) for k in sizes])
        compute, compute_sd, fastest = (extremes * (self.t_compute / speeds)[:, None]).T
        hidden = np.zeros(g)
        if self.sends_when_ready:
            hidden = np.minimum(compute - fastest, (sizes - 1) * self.t_link)
        total = compute - hidden + sizes * self.t_link + self.t_head + self.t_server
        share = 1 / total / (1 / total).sum()
        parts = (compute, compute_sd, hidden, sizes, total)
        return _Cycle(*(float(share @ part) for part in parts))

    def _checked(self, g: ArrayLike) -> tuple[NDArray[np.int64], list[int]]:
        groups = np.asarray(g)
        whole = np.rint(groups).astype(np.int64)
        if np.any(whole != groups) or np.any(whole < 1) or np.any(whole > self.num_devices):
            raise ValueError(f"g={g!r}: give whole numbers from 1 to {self.num_devices}")
        return whole, whole.ravel().tolist()


@lru_cache(maxsize=4096)
def deal(speeds: tuple[float, ...], g: int) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Deals devices into groups of nearly equal total speed, fastest first to the slowest group.

    Args:
        speeds: Speed of each device, shape ``(N,)``.
        g: Number of groups, 1 to N.

    Returns:
        Devices of each group and their total speed, each of shape ``(g,)``; not to be written to.
    """
    groups = [(0.0, 0, j) for j in range(g)]
    for speed in sorted(speeds, reverse=True):
        total, size, j = groups[0]
        heapreplace(groups, (total + speed, size + 1, j))
    return np.array([size for _, size, _ in groups]), np.array([total for total, _, _ in groups])


def transfer_seconds(num_bytes: ArrayLike, *, alpha: float, beta: float) -> NDArray[np.float64]:
    """Seconds of one transfer one way; ``t_link`` is this for the backbone, down plus up.

    Args:
        num_bytes: Bytes moved, any shape.
        alpha: Seconds whatever the size.
        beta: Seconds per byte, 1 / (bytes per second).
    """
    return alpha + beta * np.asarray(num_bytes, dtype=float)


def _mean_value_analysis(g: int, delay: float, services: Sequence[float]) -> float:
    """Seconds per customer of g customers that go round a delay and queues of constant service.

    A customer that arrives finds what the network without it holds on average; of the one in
    service, half the service is left.
    """
    rate, queues = 0.0, [0.0] * len(services)
    for customers in range(1, g + 1):
        stays = [s * (1 + q - rate * s / 2) for s, q in zip(services, queues, strict=True)]
        rate = customers / (delay + sum(stays))
        queues = [rate * stay for stay in stays]
    return 1 / rate
