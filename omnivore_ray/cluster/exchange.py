"""How blocks of parameters and gradients travel between server and workers.

Small blocks travel inside the call, larger ones through the object store, where the reader maps
them without a copy. Either way what is received is read-only and immutable: `publish` must be
called under the server's lock, and nothing ever hands out the live block.
"""

from __future__ import annotations

import math
import struct
import warnings
from typing import NamedTuple, TypeAlias

import numpy as np
import ray
import torch
from numpy.typing import NDArray

from omnivore_ray.update.ledger import Answer, Lease

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


_PUSH = struct.Struct("<qqqd?dq")
_LEASE = struct.Struct("<?qqqqqqqq")


def encode_push(push: Push) -> Push | bytes:
    """A push with a small block as plain bytes, which Ray sends without pickling them."""
    device, request, lease, block, present, loss, finite, compute_s, metrics = push
    if metrics is not None or not isinstance(block, bytes):
        return push
    header = _PUSH.pack(device, request, lease, loss, finite, compute_s, len(present))
    return b"".join((header, present, block))


def decode_push(sent: Push | bytes) -> Push:
    """The inverse of `encode_push`."""
    if not isinstance(sent, bytes):
        return sent
    device, request, lease, loss, finite, compute_s, length = _PUSH.unpack_from(sent)
    start = _PUSH.size + length
    present = sent[_PUSH.size : start]
    return Push(device, request, lease, sent[start:], present, loss, finite, compute_s)


def encode_answer(answer: tuple[Lease, Parcel] | Answer) -> tuple[Lease, Parcel] | Answer | bytes:
    """A lease with a small block as plain bytes."""
    if isinstance(answer, Answer):
        return answer
    lease, block = answer
    if not isinstance(block, bytes):
        return answer
    header = _LEASE.pack(lease.kind == "train", lease.id, *lease[2:])
    return header + block


def decode_answer(
    sent: tuple[Lease, Parcel] | Answer | bytes,
) -> tuple[Lease, Parcel] | Answer:
    """The inverse of `encode_answer`."""
    if not isinstance(sent, bytes):
        return sent
    train, number, *rest = _LEASE.unpack_from(sent)
    return Lease(number, "train" if train else "evaluate", *rest), sent[_LEASE.size :]


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
