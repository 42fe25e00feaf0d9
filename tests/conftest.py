"""What every test may count on: one thread per process, fixed seeds, and one shared Ray."""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Iterator

# Before torch is imported, here and in every process that a test starts.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import pytest


@pytest.fixture(autouse=True)
def seeds() -> None:
    """Starts every test from the same random state."""
    random.seed(0)
    np.random.seed(0)
    if "torch" in sys.modules:
        sys.modules["torch"].manual_seed(0)


@pytest.fixture(scope="session")
def ray_session() -> Iterator[None]:
    """A Ray of the tests' own with 8 logical CPUs, so that a test can place several actors."""
    from omnivore_ray.cluster.local_ray import attach_or_start

    with attach_or_start(num_cpus=8, address="local"):
        yield


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skips what needs a GPU on a machine that has none."""
    wanting = [item for item in items if item.get_closest_marker("gpu")]
    if not wanting:
        return
    import torch

    if not torch.cuda.is_available():
        for item in wanting:
            item.add_marker(pytest.mark.skip(reason="no CUDA device"))
