"""A character language model: which character comes next?"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn


class CharLSTM(nn.Module):
    """Embedding, LSTM and a linear read-out; the state starts from zero in every sequence.

    Args:
        symbols: Number of distinct characters.
        embedding: Width of a character's vector.
        hidden: Width of the LSTM's state.
        layers: LSTM layers.
    """

    def __init__(
        self, symbols: int = 84, embedding: int = 64, hidden: int = 256, layers: int = 1
    ) -> None:
        super().__init__()
        self.embedding = nn.Embedding(symbols, embedding)
        self.lstm = nn.LSTM(embedding, hidden, layers, batch_first=True)
        self.classifier = nn.Linear(hidden, symbols)

    def forward(self, characters: torch.Tensor) -> torch.Tensor:
        """Logits, n x length x symbols, of character numbers, n x length int64."""
        states, _ = self.lstm(self.embedding(characters))
        logits: torch.Tensor = self.classifier(states)
        return logits


def next_character_loss(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Mean cross-entropy in nats over samples and positions.

    Args:
        outputs: Logits, n x length x symbols.
        targets: The characters that followed, n x length int64.
    """
    return F.cross_entropy(outputs.flatten(0, 1), targets.flatten())
