"""What virtual devices push: real gradients, computed one lease after the other.

The gradient of a batch is the sum over its shares, so it is computed whole, once, when the last
share of the batch comes in; the other shares bring nothing. That is as fast as a plain loop
whatever the size of the groups, and equal to what the devices would give up to rounding, and to
the masks of dropout. A model with buffers is computed share by share, since statistics of
BatchNorm depend on who saw which rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch

from omnivore_ray.data.datasets import Split
from omnivore_ray.device.share import ShareRunner
from omnivore_ray.device.step import TorchTrainer
from omnivore_ray.update.layout import Layout
from omnivore_ray.update.ledger import Lease
from omnivore_ray.update.parts import Part
from omnivore_ray.workload import Workload


class Shares:
    """Computes for all devices of a cluster; one module serves them all.

    Args:
        workload: Its loss and metrics.
        split: Its data, as sources.
        module: A module of the workload's model; its values do not matter.
        layout: Of the blocks that are pushed.
        seed: The run's.
    """

    def __init__(
        self,
        *,
        workload: Workload,
        split: Split,
        module: torch.nn.Module,
        layout: Layout,
        seed: int,
    ) -> None:
        self._layout = layout
        self._whole = not any(True for _ in module.buffers())
        self._runner = ShareRunner(
            name="a virtual device",
            trainer=TorchTrainer(module, workload),
            train=split.train,
            validation=split.validation,
            batch_size=workload.batch_size,
            seed=seed,
        )
        self._nothing = Part(block=layout.zeros(), present=bytes(len(layout.names)), loss=0.0)
        self._block = layout.zeros()
        self._views = layout.views(self._block)

    def part(
        self,
        lease: Lease,
        state: Mapping[str, torch.Tensor],
        *,
        completes: bool,
        compute_s: float,
    ) -> Part:
        """What the lease's device pushes; to be pushed before the next call.

        Args:
            lease: The rows.
            state: Parameters and buffers of the lease's version.
            completes: Whether this is the last share of its batch to come in.
            compute_s: Virtual seconds it took.

        Raises:
            OmnivoreError: The user's code failed; its exception is the cause.
        """
        if lease.kind == "evaluate":
            metrics = self._runner.evaluate(start=lease.start, stop=lease.stop, state=state)
            return Part(metrics=metrics, compute_s=compute_s)
        if not self._whole:
            block = self._layout.zeros()  # of its own: the ledger keeps it until the last is in
            return self._gradient(
                lease, lease.start, lease.stop, lease.weight, state, block, compute_s
            )
        if not completes:
            return replace(self._nothing, compute_s=compute_s)
        part = self._gradient(lease, 0, lease.total, 1.0, state, self._block, compute_s)
        return replace(part, loss=part.loss / lease.weight)

    def _gradient(
        self,
        lease: Lease,
        start: int,
        stop: int,
        weight: float,
        state: Mapping[str, torch.Tensor],
        block: torch.Tensor,
        compute_s: float,
    ) -> Part:
        views = self._views if block is self._block else self._layout.views(block)
        share = self._runner.gradient(
            batch=lease.batch, start=start, stop=stop, weight=weight, state=state, out=views
        )
        return Part(
            block=block,
            present=share.present,
            loss=share.loss,
            finite=share.finite,
            compute_s=compute_s,
        )
