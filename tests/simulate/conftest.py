"""A workload that takes no time, and clusters of a few lines."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from omnivore_ray.data.datasets import Split
from omnivore_ray.workload import Workload


def perceptron() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 2)).double()


def right_sign(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return ((outputs > 0) == (targets > 0)).double().mean()


@pytest.fixture
def regression() -> Callable[..., Workload]:
    """A small regression in float64; any field as wanted."""

    def make(rows: int = 100, **fields: Any) -> Workload:
        rng = np.random.default_rng(0)
        inputs = rng.standard_normal((rows + 40, 6))
        targets = np.tanh(inputs @ rng.standard_normal((6, 2)))
        split = Split(
            train=(inputs[:rows], targets[:rows]), validation=(inputs[rows:], targets[rows:])
        )
        base = Workload(model=perceptron, data=split, loss=F.mse_loss, batch_size=32)
        return replace(base, **fields)

    return make


@pytest.fixture
def accuracy() -> dict[str, Any]:
    return {"accuracy": right_sign}
