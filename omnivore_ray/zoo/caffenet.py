"""CaffeNet, the single-tower AlexNet of Caffe and of the Omnivore paper."""

from __future__ import annotations

import torch
from torch import nn


class CaffeNet(nn.Module):
    """Five convolutions and three fully connected layers over 227 x 227; 61 M parameters.

    58.6 M of them are in the fully connected layers, which do a tenth of the arithmetic: the
    shape that makes a head server worth having.

    Args:
        classes: Number of classes.

    Source: Jia et al., "Caffe", 2014, bvlc_reference_caffenet, after Krizhevsky et al., 2012.
    """

    def __init__(self, classes: int = 1000) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 96, 11, stride=4),
            nn.ReLU(),
            nn.MaxPool2d(3, 2),
            nn.LocalResponseNorm(5),
            nn.Conv2d(96, 256, 5, padding=2, groups=2),
            nn.ReLU(),
            nn.MaxPool2d(3, 2),
            nn.LocalResponseNorm(5),
            nn.Conv2d(256, 384, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(384, 384, 3, padding=1, groups=2),
            nn.ReLU(),
            nn.Conv2d(384, 256, 3, padding=1, groups=2),
            nn.ReLU(),
            nn.MaxPool2d(3, 2),
        )
        self.classifier = nn.Sequential(
            nn.Flatten(),
            nn.Linear(256 * 6 * 6, 4096),
            nn.ReLU(),
            nn.Dropout(0.5),
            nn.Linear(4096, 4096),
            nn.ReLU(),
            nn.Dropout(0.5),
            nn.Linear(4096, classes),
        )

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Logits, n x classes, of images, n x 3 x 227 x 227."""
        logits: torch.Tensor = self.classifier(self.features(images))
        return logits
