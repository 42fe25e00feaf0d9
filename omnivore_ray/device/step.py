"""TorchTrainer: our black box, a PyTorch module on one device."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from omnivore_ray.device.module import LentModule, checked_loss
from omnivore_ray.device.split import Split
from omnivore_ray.device.trainer import Step, count_samples, split_batch
from omnivore_ray.workload import Workload


class TorchTrainer:
    """Runs a workload's module, loss and metrics.

    With a split it is a `SplitTrainer` too.

    Args:
        module: This trainer's own copy; moved to ``device``.
        workload: Its loss, metrics and target name.
        device: Where to compute.
        split: Of ``module``, for `forward` and `backward`; None for a model that stays whole.
    """

    def __init__(
        self,
        module: nn.Module,
        workload: Workload,
        device: torch.device | str = "cpu",
        split: Split | None = None,
    ) -> None:
        self._device = torch.device(device)
        self._whole = LentModule(module, self._device)
        self._backbone = None if split is None else LentModule(split.backbone, self._device)
        self._workload = workload
        self._pending: tuple[tuple[torch.Tensor, ...], int] | None = None

    def gradient(self, state: Mapping[str, torch.Tensor], batch: Any) -> Step:
        """See `Trainer.gradient`."""
        self._pending = None
        self._whole.load(state)
        self._whole.module.train()
        outputs, targets = self._outputs(batch)
        loss = checked_loss(self._workload, outputs, targets)
        torch.autograd.backward(loss)
        return Step(
            gradients=self._whole.take_gradients(),
            loss=float(loss.detach()),
            samples=count_samples(batch),
            buffers=self._whole.buffers(),
        )

    def forward(self, state: Mapping[str, torch.Tensor], batch: Any) -> tuple[torch.Tensor, ...]:
        """See `SplitTrainer.forward`."""
        backbone = self._cut()
        backbone.load(state)
        backbone.module.train()
        inputs, named, _ = split_batch(self._move(batch), self._workload.target)
        activations = backbone.module(*inputs, **named)
        self._pending = (activations, count_samples(batch))
        return tuple(activation.detach().cpu() for activation in activations)

    def backward(self, gradients: Sequence[torch.Tensor | None]) -> Step:
        """See `SplitTrainer.backward`."""
        backbone = self._cut()
        if self._pending is None:
            raise ValueError("backward() without a forward() before it; call forward first")
        (activations, samples), self._pending = self._pending, None
        if len(gradients) != len(activations):
            raise ValueError(
                f"backward() got {len(gradients)} gradients for {len(activations)} activations; "
                "give one for each, or None"
            )
        pairs = [
            (activation, gradient.to(self._device))
            for activation, gradient in zip(activations, gradients, strict=True)
            if gradient is not None and activation.requires_grad
        ]
        if pairs:
            torch.autograd.backward([a for a, _ in pairs], [g for _, g in pairs])
        return Step(
            gradients=backbone.take_gradients(),
            loss=math.nan,
            samples=samples,
            buffers=backbone.buffers(),
        )

    def evaluate(self, state: Mapping[str, torch.Tensor], batch: Any) -> dict[str, float]:
        """See `Trainer.evaluate`."""
        self._pending = None
        self._whole.load(state)
        self._whole.module.eval()
        with torch.no_grad():
            outputs, targets = self._outputs(batch)
            metrics = self._workload.metrics.items()
            return {name: float(metric(outputs, targets)) for name, metric in metrics}

    def _cut(self) -> LentModule:
        if self._backbone is None:
            raise ValueError("this trainer runs the whole model; give TorchTrainer a split")
        return self._backbone

    def _outputs(self, batch: Any) -> tuple[Any, Any]:
        inputs, named, targets = split_batch(self._move(batch), self._workload.target)
        return self._whole.module(*inputs, **named), targets

    def _move(self, batch: Any) -> Any:
        if self._device.type == "cpu":
            return batch
        if isinstance(batch, Mapping):
            return {name: self._move_one(value) for name, value in batch.items()}
        return tuple(self._move_one(value) for value in batch)

    def _move_one(self, value: Any) -> Any:
        return value.to(self._device) if isinstance(value, torch.Tensor) else value
