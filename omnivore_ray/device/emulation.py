"""Emulation: a paced clock for a device we do not have. Real gradients, made-up time."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, kw_only=True, slots=True)
class Emulation:
    """How slow a device pretends to be; everything that shows its numbers says "emulated".

    Attributes:
        samples_per_s: Rate at which it trains.
        jitter: Standard deviation of the time of a step over its mean; the times are gamma
            distributed, so 0 is constant and 1 exponential.
        latency_s: Added to each step.
        bytes_per_s: Rate of its link to the server, for parameters down and gradients up; None
            for no limit.
        shared_link: Whether that link is one for all devices that say so, used by one at a time.
    """

    samples_per_s: float
    jitter: float = 0.0
    latency_s: float = 0.0
    bytes_per_s: float | None = None
    shared_link: bool = False

    def __post_init__(self) -> None:
        positive = {"samples_per_s": self.samples_per_s}
        if self.bytes_per_s is not None:
            positive["bytes_per_s"] = self.bytes_per_s
        for name, value in positive.items():
            if not _is_number(value) or value <= 0:
                raise ValueError(f"Emulation.{name}={value!r}: give a finite number above 0")
        for name in ("jitter", "latency_s"):
            value = getattr(self, name)
            if not _is_number(value) or value < 0:
                raise ValueError(f"Emulation.{name}={value!r}: give a finite number, 0 or more")
        if self.shared_link and self.bytes_per_s is None:
            raise ValueError("Emulation.shared_link=True: give bytes_per_s, the link's rate")

    def transfer_s(self, moved_bytes: int) -> float:
        """How long the link is used for so many bytes."""
        return moved_bytes / self.bytes_per_s if self.bytes_per_s else 0.0

    def compute_s(self, samples: int, random: np.random.Generator) -> float:
        """How long one step takes, without its transfers."""
        compute_s = samples / self.samples_per_s
        if self.jitter > 0:
            shape = 1.0 / self.jitter**2
            compute_s *= random.gamma(shape, 1.0 / shape)
        return compute_s + self.latency_s


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
