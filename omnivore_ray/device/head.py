"""TorchHead: forward, loss and backward of a model's head, from activations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from omnivore_ray.device.module import LentModule, checked_loss
from omnivore_ray.workload import Workload


@dataclass(frozen=True, kw_only=True, slots=True)
class HeadStep:
    """What a head returns for the activations of one batch.

    Attributes:
        gradients: By parameter name, on the CPU, of the *mean* loss over the rows; None for a
            parameter that got none.
        activation_gradients: One for each activation, of its shape, on the CPU; None where it
            needs none (integers, or no influence on the loss).
        loss: Mean loss over the rows.
        samples: Number of rows.
        buffers: By name, the head's buffers after the step.
    """

    gradients: Mapping[str, torch.Tensor | None]
    activation_gradients: tuple[torch.Tensor | None, ...]
    loss: float
    samples: int
    buffers: Mapping[str, torch.Tensor]


class TorchHead:
    """Computes the head of a `Split`. Seeding dropout is the caller's business.

    Args:
        head: ``Split.head``; moved to ``device``.
        workload: Its loss.
        device: Where to compute.
    """

    def __init__(
        self, head: nn.Module, workload: Workload, device: torch.device | str = "cpu"
    ) -> None:
        self._device = torch.device(device)
        self._head = LentModule(head, self._device)
        self._workload = workload

    def gradient(
        self,
        state: Mapping[str, torch.Tensor],
        activations: Sequence[torch.Tensor],
        targets: Any,
    ) -> HeadStep:
        """Forward, loss and backward.

        Args:
            state: Trainable parameters and buffers of the head by name, on the CPU, and maybe more.
            activations: What the backbone gave, each rows x ...; left unchanged.
            targets: One entry a row.

        Raises:
            ValueError: The loss is no single number with a graph.
        """
        self._head.load(state)
        self._head.module.train()
        leaves = [self._leaf(activation) for activation in activations]
        if isinstance(targets, torch.Tensor):
            targets = targets.to(self._device)
        # copies, since a head may begin with an operation in place, which a leaf forbids
        outputs = self._head.module(*(leaf.clone() for leaf in leaves))
        loss = checked_loss(self._workload, outputs, targets)
        torch.autograd.backward(loss)
        gradients = [None if leaf.grad is None else leaf.grad.cpu() for leaf in leaves]
        return HeadStep(
            gradients=self._head.take_gradients(),
            activation_gradients=tuple(gradients),
            loss=float(loss.detach()),
            samples=len(activations[0]),
            buffers=self._head.buffers(),
        )

    def _leaf(self, activation: torch.Tensor) -> torch.Tensor:
        leaf = activation.detach().to(self._device)
        return leaf.requires_grad_() if leaf.is_floating_point() else leaf
