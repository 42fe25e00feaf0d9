"""Seconds of a cluster whose groups share one link and one head server, from its events."""

from __future__ import annotations

from heapq import heapify, heapreplace

import numpy as np
from numpy.typing import NDArray

TRACE_CYCLES = 60


class Clock:
    """When the n-th update of a request is applied, for each number of groups.

    A group of k = N/g devices computes (the slowest of k draws of ``compute_s``/k), then holds
    the shared link for k ``link_s``, then the head server for ``head_s``; both serve in order of
    arrival. All groups start at once. The first updates are the events themselves; later ones go
    on at the pace of the second half of the trace.

    Args:
        num_devices: N, a power of two.
        compute_s: Seconds one device alone needs for a whole batch.
        link_s: Seconds of one copy of the backbone, down and up.
        head_s: Seconds of the head for one batch.
        jitter: "steady" (5 % normal), "exponential", or "stalls" (5 % of steps take 8 times).
        seed: Of the device times.
    """

    def __init__(
        self,
        *,
        num_devices: int,
        compute_s: float,
        link_s: float,
        head_s: float,
        jitter: str,
        seed: int,
    ) -> None:
        self.num_devices = num_devices
        self.compute_s, self.link_s, self.head_s, self.jitter = compute_s, link_s, head_s, jitter
        self._seed = seed
        self._traces: dict[int, NDArray[np.float64]] = {}

    def seconds(self, g: int, n: NDArray[np.int64] | NDArray[np.float64]) -> NDArray[np.float64]:
        """Seconds from the start of a request to its n-th update (n >= 1; inf stays inf)."""
        trace = self._trace(g)
        n = np.asarray(n, dtype=float)
        known = trace[np.clip(n, 1, len(trace)).astype(int) - 1]
        beyond = n > len(trace)
        return np.where(
            beyond, trace[-1] + np.where(beyond, n - len(trace), 0) * self.pace(g), known
        )

    def updates(self, g: int, seconds: float) -> int:
        """Updates applied within ``seconds``."""
        trace = self._trace(g)
        if seconds < trace[-1]:
            return int(np.searchsorted(trace, seconds, side="right"))
        return len(trace) + int(min((seconds - trace[-1]) / self.pace(g), 1e9))

    def pace(self, g: int) -> float:
        """Seconds per update once the pipeline is full: HE(g)."""
        trace = self._trace(g)
        half = len(trace) // 2
        return float((trace[-1] - trace[half - 1]) / (len(trace) - half))

    def _trace(self, g: int) -> NDArray[np.float64]:
        if g not in self._traces:
            self._traces[g] = self._simulate(g)
        return self._traces[g]

    def _simulate(self, g: int) -> NDArray[np.float64]:
        rng = np.random.default_rng((self._seed, g))
        k, count = self.num_devices // g, TRACE_CYCLES * max(g, 4)
        work = self.compute_s / k * self._draws(rng, (count + g, k)).max(axis=1)
        link, head = k * self.link_s, self.head_s
        ready = [(float(work[i]), i) for i in range(g)]
        heapify(ready)
        link_free = head_free = 0.0
        applied = np.empty(count)
        for i in range(count):
            at, group = ready[0]
            link_free = max(at, link_free) + link
            head_free = max(link_free, head_free) + head
            applied[i] = head_free
            heapreplace(ready, (head_free + float(work[g + i]), group))
        return applied

    def _draws(self, rng: np.random.Generator, shape: tuple[int, int]) -> NDArray[np.float64]:
        if self.jitter == "steady":
            return np.maximum(0.5, 1 + 0.05 * rng.standard_normal(shape))
        if self.jitter == "exponential":
            return rng.exponential(1.0, shape)
        return np.where(rng.random(shape) < 0.05, 8.0, 1.0)


def draw_clock(rng: np.random.Generator, num_devices: int = 32) -> Clock:
    """A cluster between PAPER section 3's presets: link- or head-bound, steady or not."""
    return Clock(
        num_devices=num_devices,
        compute_s=3.5,
        link_s=10 ** rng.uniform(-3, -0.8),
        head_s=10 ** rng.uniform(-2, -0.35),
        jitter=str(rng.choice(["steady", "exponential", "stalls"], p=[0.6, 0.2, 0.2])),
        seed=int(rng.integers(2**31)),
    )
