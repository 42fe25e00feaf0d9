"""Layout: where each tensor lies inside one flat block of bytes.

Parameters, gradients and buffers travel as one block, not as one object a tensor. A block is a
one-dimensional uint8 tensor; tensors of one dtype lie side by side, so that whole blocks can be
added with one operation a dtype, and mixed float32/bfloat16/int64 models need no special case.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

_ALIGN_BYTES = 64


@dataclass(frozen=True, kw_only=True, slots=True)
class Layout:
    """Names, shapes, dtypes and byte offsets of the tensors in a block.

    Attributes:
        names: Tensor names, sorted by dtype, then in the order given.
        shapes: One shape a name.
        dtypes: One dtype a name.
        offsets: First byte of each.
        nbytes: Length of the block.
        spans: For each dtype the bytes ``[start, stop)`` its tensors lie in.
    """

    names: tuple[str, ...]
    shapes: tuple[torch.Size, ...]
    dtypes: tuple[torch.dtype, ...]
    offsets: tuple[int, ...]
    nbytes: int
    spans: Mapping[torch.dtype, tuple[int, int]]

    @classmethod
    def of(cls, tensors: Mapping[str, torch.Tensor]) -> Layout:
        """Lays out the given tensors; their values do not matter."""
        names = sorted(tensors, key=lambda name: str(tensors[name].dtype))  # stable
        offsets: list[int] = []
        spans: dict[torch.dtype, tuple[int, int]] = {}
        end = 0
        for name in names:
            tensor = tensors[name]
            offsets.append(end)
            start = spans.get(tensor.dtype, (end, end))[0]
            end += -(-tensor.numel() * tensor.element_size() // _ALIGN_BYTES) * _ALIGN_BYTES
            spans[tensor.dtype] = (start, end)
        return cls(
            names=tuple(names),
            shapes=tuple(tensors[name].shape for name in names),
            dtypes=tuple(tensors[name].dtype for name in names),
            offsets=tuple(offsets),
            nbytes=end,
            spans=spans,
        )

    def zeros(self) -> torch.Tensor:
        """A new block of zeros, shape ``(nbytes,)``, uint8."""
        return torch.zeros(self.nbytes, dtype=torch.uint8)

    def views(self, block: torch.Tensor) -> dict[str, torch.Tensor]:
        """Each tensor as a view into ``block``, shape ``(nbytes,)``, uint8."""
        views = {}
        places = zip(self.names, self.shapes, self.dtypes, self.offsets, strict=True)
        for name, shape, dtype, offset in places:
            stop = offset + shape.numel() * dtype.itemsize
            views[name] = block[offset:stop].view(dtype).view(shape)
        return views

    def add(self, total: torch.Tensor, block: torch.Tensor) -> None:
        """Adds one block to another in place, tensor by tensor in its own dtype."""
        for dtype, (start, stop) in self.spans.items():
            total[start:stop].view(dtype).add_(block[start:stop].view(dtype))
