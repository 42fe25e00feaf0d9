"""How long a virtual device takes for a step: its mean time multiplied by a random factor.

Factors have mean 1, so a device's rate means the same whatever their distribution. They are drawn
from (seed, device, count) alone: the n-th step of a device takes the same time in every run of a
seed, however devices are grouped, which makes runs comparable pair by pair.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

Distribution = Literal["constant", "jittered", "exponential", "lognormal", "stalls"]

_BLOCK = 64


@dataclass(frozen=True, slots=True)
class ServiceTimes:
    """The distribution of a device's step times.

    Attributes:
        distribution: "constant"; "jittered" (gamma distributed, as an emulated device);
            "exponential"; "lognormal"; or "stalls" (a few steps take several times as long).
        cv: Standard deviation over mean, > 0, of "jittered" and "lognormal".
        stall_share: Share of steps that stall, in (0, 1), of "stalls".
        stall_factor: How many times as long these take, > 1.

    Raises:
        ValueError: Unknown distribution, or a number out of range.
    """

    distribution: Distribution = "constant"
    cv: float = 0.1
    stall_share: float = 0.05
    stall_factor: float = 8.0

    def __post_init__(self) -> None:
        known = get_args(Distribution)
        if self.distribution not in known:
            raise ValueError(
                f"ServiceTimes.distribution={self.distribution!r}: give one of {', '.join(known)}"
            )
        if not (math.isfinite(self.cv) and self.cv > 0):
            raise ValueError(f"ServiceTimes.cv={self.cv!r}: give a finite number above 0")
        if not 0 < self.stall_share < 1:
            raise ValueError(f"ServiceTimes.stall_share={self.stall_share!r}: give one in (0, 1)")
        if not (math.isfinite(self.stall_factor) and self.stall_factor > 1):
            raise ValueError(f"ServiceTimes.stall_factor={self.stall_factor!r}: give more than 1")

    def factors(self, random: np.random.Generator, count: int) -> NDArray[np.float64]:
        """Independent factors of mean 1, shape ``(count,)``."""
        match self.distribution:
            case "constant":
                return np.ones(count)
            case "jittered":
                shape = 1.0 / self.cv**2
                return random.gamma(shape, 1.0 / shape, count)
            case "exponential":
                return random.exponential(1.0, count)
            case "lognormal":
                variance = math.log1p(self.cv**2)
                return random.lognormal(-variance / 2, math.sqrt(variance), count)
        stalled = random.random(count) < self.stall_share
        mean = 1.0 + self.stall_share * (self.stall_factor - 1.0)
        return np.where(stalled, self.stall_factor, 1.0) / mean


class Factors:
    """The factor of every step of every device, one after the other.

    Args:
        service_times: Distribution of each device, shape ``(N,)``.
        seed: Of the run.
    """

    def __init__(self, service_times: Sequence[ServiceTimes], seed: int) -> None:
        self._service_times = service_times
        self._seed = seed
        self._blocks = [0] * len(service_times)
        #: Factors drawn ahead, the next one last; `next` refills what is empty.
        self.ahead: list[list[float]] = [[] for _ in service_times]

    def next(self, device: int) -> float:
        """The factor of the device's next step."""
        ahead = self.ahead[device]
        if not ahead:
            words = np.random.SeedSequence((self._seed, device, self._blocks[device]))
            random = np.random.Generator(np.random.PCG64(words))
            ahead.extend(self._service_times[device].factors(random, _BLOCK).tolist())
            self._blocks[device] += 1
        return ahead.pop()
