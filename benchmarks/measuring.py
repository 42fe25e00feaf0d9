"""What the benchmarks share: the words for the machine, medians, and a Ray of their own."""

from __future__ import annotations

import os
import statistics
from collections.abc import Sequence


def machine() -> str:
    """The machine, in words, for the head of a table."""
    model = "unknown processor"
    with open("/proc/cpuinfo") as lines:
        for line in lines:
            if line.startswith("model name"):
                model = line.partition(":")[2].strip()
                break
    return f"{model}, {len(os.sched_getaffinity(0))} cores"


def spread(values: Sequence[float]) -> str:
    """Median with the least and the largest value."""
    return f"{statistics.median(values):8.2f} ({min(values):.2f} .. {max(values):.2f})"
