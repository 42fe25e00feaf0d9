"""Omnivore on Ray: train a PyTorch model on whatever devices you have, in the least time.

The public names are resolved on first use, so importing one room imports that room only.
"""

from __future__ import annotations

import importlib
from typing import Any

__version__ = "0.1.0"

_HOMES = {
    "Device": "omnivore_ray.cluster.devices",
    "Emulation": "omnivore_ray.device.emulation",
    "OmnivoreError": "omnivore_ray.errors",
    "OmnivoreSearch": "omnivore_ray.search.searcher",
    "OmnivoreTrainable": "omnivore_ray.cluster.trainable",
    "OmnivoreTrainer": "omnivore_ray.trainer",
    "Result": "omnivore_ray.result",
    "Strategy": "omnivore_ray.strategy",
    "Target": "omnivore_ray.workload",
    "VirtualCluster": "omnivore_ray.simulate.cluster",
    "Workload": "omnivore_ray.workload",
}
_ROOMS = {
    "datasets": "omnivore_ray.data.datasets",
    "simulate": "omnivore_ray.simulate",  # called, it simulates: see there
    "zoo": "omnivore_ray.zoo",
}

__all__ = sorted([*_HOMES, *_ROOMS])


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    if name in _ROOMS:
        return importlib.import_module(_ROOMS[name])
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
