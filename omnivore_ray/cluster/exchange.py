"""How blocks of parameters and gradients travel between server and workers.

Small blocks travel inside the call, larger ones through the object store, where the reader maps
them without a copy. Either way what is received is read-only and immutable: `publish` must be
called under the server's lock, and nothing ever hands out the live block.
"""

from __future__ import annotations

import math
import warnings
from typing import NamedTuple, TypeAlias

import numpy as np
import ray
import torch
from numpy.typing import NDArray

#: Ray itself moves arguments and results beyond this into the object store.
_INLINE_BYTES = 100 * 1024

#: A block on its way down (parameters).
Parcel: TypeAlias = "bytes | ray.ObjectRef[NDArray[np.uint8]]"
#: A block on its way up (gradients).
Pushed: TypeAlias = "bytes | NDArray[np.uint8]"


class Push(NamedTuple):
    """What a worker sends for a lease: one argument, since Ray pays for each one.

    Attributes:
        device: Device number.
        request: Number of the request the lease belongs to.
        lease: Id of the lease.
        block: Gradients and buffers; empty after a validation.
        present: See `omnivore_ray.update.session.Part`, as the rest.
        loss: Mean loss over the rows.
        finite: Whether every gradient entry is.
        compute_s: Seconds the device computed.
        metrics: Means of a validation, or None.
    """

    device: int
    request: int
    lease: int
    block: Pushed = b""
    present: bytes = b""
    loss: float = math.nan
    finite: bool = True
    compute_s: float = 0.0
    metrics: dict[str, float] | None = None


def publish(block: torch.Tensor) -> Parcel:
    """One immutable copy of a live block, for any number of readers."""
    if block.nbytes <= _INLINE_BYTES:
        return block.numpy().tobytes()
    return ray.put(block.numpy())


def fetch(parcel: Parcel) -> torch.Tensor:
    """What `publish` copied; only to be read."""
    if isinstance(parcel, bytes):
        return receive(parcel)
    return receive(ray.get(parcel))


def pack(block: torch.Tensor) -> Pushed:
    """A block as the argument of a call; its memory may be reused once the call has been made."""
    array = block.numpy()
    return array.tobytes() if array.nbytes <= _INLINE_BYTES else array


def receive(pushed: Pushed) -> torch.Tensor:
    """What `pack` sent; only to be read."""
    return torch.from_numpy(np.frombuffer(pushed, np.uint8))


def accept_read_only_arrays() -> None:
    """Silences torch's warning about them; called once in each of our actors' processes."""
    warnings.filterwarnings("ignore", message="The given (NumPy array|buffer) is not writable")
