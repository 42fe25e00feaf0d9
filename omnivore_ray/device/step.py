"""TorchTrainer: our black box, a PyTorch module on one device."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from omnivore_ray.device.trainer import Step, count_samples, split_batch
from omnivore_ray.workload import Workload


class TorchTrainer:
    """Runs a workload's module, loss and metrics.

    On the CPU the module's parameters *are* the state it is given (views, no copy); a module on
    another device gets them copied in. Buffers are always copied in, since forward changes them.

    Args:
        module: This trainer's own copy; moved to ``device``.
        workload: Its loss, metrics and target name.
        device: Where to compute.
    """

    def __init__(
        self, module: nn.Module, workload: Workload, device: torch.device | str = "cpu"
    ) -> None:
        self._device = torch.device(device)
        self._module = module.to(self._device)
        self._workload = workload
        self._parameters = {n: p for n, p in module.named_parameters() if p.requires_grad}
        self._bound: Mapping[str, torch.Tensor] | None = None

    def gradient(self, state: Mapping[str, torch.Tensor], batch: Any) -> Step:
        """See `Trainer.gradient`."""
        self._load(state)
        self._module.train()
        outputs, targets = self._forward(batch)
        loss = self._workload.loss(outputs, targets)
        if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
            shape = tuple(loss.shape) if isinstance(loss, torch.Tensor) else type(loss).__name__
            raise ValueError(
                f"Workload.loss returned {shape}; return one number, the mean over the samples"
            )
        if not loss.requires_grad:
            raise ValueError(
                "Workload.loss does not depend on any trainable parameter (it was detached?)"
            )
        torch.autograd.backward(loss)
        gradients = {}
        for name, parameter in self._parameters.items():
            gradient, parameter.grad = parameter.grad, None
            if gradient is not None and gradient.layout != torch.strided:
                raise ValueError(
                    f"the gradient of {name!r} is sparse, which groups cannot merge; "
                    "make it dense (sparse=False)"
                )
            gradients[name] = None if gradient is None else gradient.cpu()
        return Step(
            gradients=gradients,
            loss=float(loss.detach()),
            samples=count_samples(batch),
            buffers={n: b.detach().cpu() for n, b in self._module.named_buffers()},
        )

    def evaluate(self, state: Mapping[str, torch.Tensor], batch: Any) -> dict[str, float]:
        """See `Trainer.evaluate`."""
        self._load(state)
        self._module.eval()
        with torch.no_grad():
            outputs, targets = self._forward(batch)
            metrics = self._workload.metrics.items()
            return {name: float(metric(outputs, targets)) for name, metric in metrics}

    def _forward(self, batch: Any) -> tuple[Any, Any]:
        inputs, named, targets = split_batch(self._move(batch), self._workload.target)
        return self._module(*inputs, **named), targets

    def _move(self, batch: Any) -> Any:
        if self._device.type == "cpu":
            return batch
        if isinstance(batch, Mapping):
            return {name: self._move_one(value) for name, value in batch.items()}
        return tuple(self._move_one(value) for value in batch)

    def _move_one(self, value: Any) -> Any:
        return value.to(self._device) if isinstance(value, torch.Tensor) else value

    @torch.no_grad()
    def _load(self, state: Mapping[str, torch.Tensor]) -> None:
        if self._device.type == "cpu":
            if self._bound is not state:
                for name, parameter in self._parameters.items():
                    parameter.data = state[name]
                self._bound = state
        else:
            for name, parameter in self._parameters.items():
                parameter.copy_(state[name])
        for name, buffer in self._module.named_buffers():
            buffer.copy_(state[name])
