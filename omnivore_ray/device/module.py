"""A module that computes on tensors it is lent: whole model, backbone or head."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from omnivore_ray.workload import Workload


class LentModule:
    """A module whose parameters and buffers are given anew for every step.

    On the CPU the parameters *are* what is given (views, no copy), so it must stay as it is until
    the backward pass is over; a module on another device gets copies. Buffers are always copied,
    since forward changes them.

    Args:
        module: Moved to ``device``.
        device: Where to compute.
    """

    def __init__(self, module: nn.Module, device: torch.device) -> None:
        self.module = module.to(device)
        self._device = device
        self._parameters = {n: p for n, p in module.named_parameters() if p.requires_grad}

    @torch.no_grad()
    def load(self, state: Mapping[str, torch.Tensor]) -> None:
        """Takes over the tensors of ``state``; names that the module has not are left alone."""
        for name, parameter in self._parameters.items():
            if self._device.type == "cpu":
                # each time: another part of the same model may have bound them to other tensors
                parameter.data = state[name]
            else:
                parameter.copy_(state[name])
        for name, buffer in self.module.named_buffers():
            buffer.copy_(state[name])

    def take_gradients(self) -> dict[str, torch.Tensor | None]:
        """The gradients by name, on the CPU, which are gone from the module after.

        Raises:
            ValueError: One is sparse.
        """
        gradients = {}
        for name, parameter in self._parameters.items():
            gradient, parameter.grad = parameter.grad, None
            if gradient is not None and gradient.layout != torch.strided:
                raise ValueError(
                    f"the gradient of {name!r} is sparse, which groups cannot merge; "
                    "make it dense (sparse=False)"
                )
            gradients[name] = None if gradient is None else gradient.cpu()
        return gradients

    def buffers(self) -> dict[str, torch.Tensor]:
        """The buffers by name, on the CPU."""
        return {n: b.detach().cpu() for n, b in self.module.named_buffers()}


def checked_loss(workload: Workload, outputs: Any, targets: Any) -> torch.Tensor:
    """The workload's loss, one number with a graph.

    Raises:
        ValueError: It is something else.
    """
    loss = workload.loss(outputs, targets)
    if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
        shape = tuple(loss.shape) if isinstance(loss, torch.Tensor) else type(loss).__name__
        raise ValueError(
            f"Workload.loss returned {shape}; return one number, the mean over the samples"
        )
    if not loss.requires_grad:
        raise ValueError(
            "Workload.loss does not depend on any trainable parameter (it was detached?)"
        )
    return loss
