"""CIFAR-quick, the small network of Caffe's CIFAR-10 example and of the Omnivore paper."""

from __future__ import annotations

import torch
from torch import nn


class CifarQuick(nn.Module):
    """Three convolutions of 5 x 5 over 32 x 32 colour images; 0.15 M parameters.

    Args:
        classes: Number of classes.

    Source: Caffe, examples/cifar10/cifar10_quick.
    """

    def __init__(self, classes: int = 10) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 32, 5, padding=2),
            nn.MaxPool2d(3, 2, ceil_mode=True),
            nn.ReLU(),
            nn.Conv2d(32, 32, 5, padding=2),
            nn.ReLU(),
            nn.AvgPool2d(3, 2, ceil_mode=True),
            nn.Conv2d(32, 64, 5, padding=2),
            nn.ReLU(),
            nn.AvgPool2d(3, 2, ceil_mode=True),
        )
        self.classifier = nn.Sequential(
            nn.Flatten(), nn.Linear(64 * 4 * 4, 64), nn.Linear(64, classes)
        )

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Logits, n x classes, of images, n x 3 x 32 x 32."""
        logits: torch.Tensor = self.classifier(self.features(images))
        return logits
