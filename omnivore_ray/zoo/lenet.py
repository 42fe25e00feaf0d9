"""LeNet, as Caffe's MNIST example has it, with a ReLU after each convolution."""

from __future__ import annotations

import torch
from torch import nn


class LeNet(nn.Module):
    """Two convolutions of 5 x 5 with pooling, then 500 hidden units; 0.43 M parameters at 28 x 28.

    Images below 16 pixels are padded in both convolutions, since unpadded ones would leave nothing.

    Args:
        image_size: Height and width in pixels, >= 4.
        channels: Channels of an image.
        classes: Number of classes.

    Raises:
        ValueError: The image is too small.

    Source: LeCun et al., "Gradient-based learning applied to document recognition", 1998.
    """

    def __init__(self, image_size: int = 28, channels: int = 1, classes: int = 10) -> None:
        super().__init__()
        if image_size < 4:
            raise ValueError(f"image_size={image_size!r}: LeNet needs at least 4 pixels")
        padding = 0 if image_size >= 16 else 2
        size = image_size
        for _ in range(2):
            size = (size + 2 * padding - 4) // 2
        self.features = nn.Sequential(
            nn.Conv2d(channels, 20, 5, padding=padding),
            nn.MaxPool2d(2),
            nn.ReLU(),
            nn.Conv2d(20, 50, 5, padding=padding),
            nn.MaxPool2d(2),
            nn.ReLU(),
        )
        self.classifier = nn.Sequential(
            nn.Flatten(),
            nn.Linear(50 * size * size, 500),
            nn.ReLU(),
            nn.Linear(500, classes),
        )

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Logits, n x classes, of images, n x channels x image_size x image_size."""
        logits: torch.Tensor = self.classifier(self.features(images))
        return logits
