"""The torn-read test can fail: with publishing moved out of the lock, reads are torn."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from omnivore_ray import Device, Emulation, OmnivoreError, Strategy, Workload
from omnivore_ray.cluster import fleet as fleet_module
from omnivore_ray.cluster.exchange import publish
from omnivore_ray.cluster.fleet import Fleet, FleetSpec
from omnivore_ray.cluster.parameter_server import ParameterServer
from omnivore_ray.strategy import Request
from omnivore_ray.update.ledger import Answer

pytestmark = [pytest.mark.usefixtures("ray_session"), pytest.mark.slow]


class Constant(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(500_000))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        if not bool((self.weight == self.weight[0]).all()):
            raise RuntimeError("torn read")
        return self.weight.sum().expand(len(inputs))


class PublishesLate(ParameterServer):
    """Copies the live block only after the lock has been given back."""

    def _publish(self, block):
        return block

    def ask(self, *arguments):
        return _late(super().ask(*arguments))

    def push(self, *arguments):
        return _late(super().push(*arguments))


def _late(answer):
    if isinstance(answer, Answer):
        return answer
    lease, block = answer
    return lease, publish(block)


def test_publishing_outside_the_lock_is_caught(monkeypatch):
    monkeypatch.setattr(fleet_module, "ParameterServer", PublishesLate)
    rows = np.zeros((1000, 1), dtype=np.float32)
    workload = Workload(
        model=Constant, data=(rows, rows), loss=lambda outputs, _: outputs.mean(), batch_size=64
    )
    device = Device(emulate=Emulation(samples_per_s=64 / 0.002, jitter=1.0))
    fleet = Fleet(FleetSpec.of(workload, [device] * 4))
    try:
        strategy = Strategy(groups=4, learning_rate=2.0**-10)
        with pytest.raises(OmnivoreError, match="torn read"):
            fleet.run(Request(kind="train", strategy=strategy, budget_updates=3000))
    finally:
        fleet.close()
