"""A source over arrays or tensors in memory."""

from __future__ import annotations

import reprlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from omnivore_ray.data.order import Rows, permutation

_INTEGER_OF_BYTES = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


@dataclass(frozen=True, slots=True)
class _Column:
    """One array; ``view`` is the torch dtype of types NumPy lacks (bfloat16), held as integers."""

    values: NDArray[Any]
    view: torch.dtype | None = None

    def take(self, rows: Rows) -> Any:
        taken = np.take(self.values, rows, axis=0)
        if taken.dtype.kind in "US":
            return taken.tolist()
        tensor = torch.from_numpy(taken)
        return tensor if self.view is None else tensor.view(self.view)


class ArraySource:
    """Rows of arrays that share their first length.

    The arrays are held as contiguous NumPy arrays (tensors without a copy), so they pickle out of
    band under protocol 5, and may come back read-only: `take` copies the rows it gives.

    Args:
        arrays: Two or more arrays or tensors with the targets last, or a dict of at least one.
            The first axis counts rows. Arrays of strings become lists in a batch.
        argument: What to call it in errors.

    Raises:
        ValueError: Lengths differ or are 0, or an entry is no array of a type torch has.
    """

    def __init__(
        self, arrays: Mapping[str, Any] | Sequence[Any], *, argument: str = "data"
    ) -> None:
        if isinstance(arrays, Mapping):
            self._names: tuple[str, ...] | None = tuple(arrays)
            entries = {f"{argument}[{name!r}]": values for name, values in arrays.items()}
            if not entries or not all(isinstance(name, str) for name in arrays):
                raise ValueError(
                    f"{argument}={reprlib.repr(arrays)}: give a dict of name -> array or tensor"
                )
        else:
            self._names = None
            entries = {f"{argument}[{index}]": values for index, values in enumerate(arrays)}
            if len(entries) < 2:
                raise ValueError(
                    f"{argument}={reprlib.repr(arrays)} has {len(entries)} entries; "
                    "give at least two: (inputs, targets)"
                )
        self._columns = tuple(_column(values, where) for where, values in entries.items())
        lengths = [len(column.values) for column in self._columns]
        if len(set(lengths)) > 1:
            listed = ", ".join(
                f"{where} has {n}" for where, n in zip(entries, lengths, strict=True)
            )
            raise ValueError(f"{argument} has arrays of different lengths: {listed} rows")
        if lengths[0] == 0:
            raise ValueError(f"{argument} has 0 rows; give at least one")

    def __len__(self) -> int:
        return len(self._columns[0].values)

    def take(self, rows: Rows) -> tuple[Any, ...] | dict[str, Any]:
        """The rows in the order given, as writable tensors (lists for strings)."""
        values = tuple(column.take(rows) for column in self._columns)
        return values if self._names is None else dict(zip(self._names, values, strict=True))

    def order(self, seed: int, epoch: int) -> Rows:
        """A shuffle of all rows."""
        return permutation(len(self), seed, epoch)


def _column(values: Any, where: str) -> _Column:
    view = None
    if isinstance(values, torch.Tensor):
        if values.layout is not torch.strided or values.is_quantized:
            raise ValueError(f"{where} is a {values.layout} tensor; give a dense one")
        values = values.detach().cpu().resolve_conj().resolve_neg()
        try:
            values = values.numpy()
        except TypeError:
            view = values.dtype
            values = values.contiguous().view(_INTEGER_OF_BYTES[values.element_size()]).numpy()
    if not isinstance(values, np.ndarray):
        raise ValueError(
            f"{where}={reprlib.repr(values)} is not an array; give a NumPy array or torch tensor"
        )
    if values.ndim == 0:
        raise ValueError(f"{where}={values!r} is a single number; the first axis counts rows")
    values = np.ascontiguousarray(values, dtype=values.dtype.newbyteorder("="))
    if values.dtype.kind not in "US":
        try:
            torch.from_numpy(np.empty(0, values.dtype))
        except TypeError:
            raise ValueError(
                f"{where} has dtype {values.dtype}, which torch does not have; "
                "convert it, e.g. with .astype('float32')"
            ) from None
    return _Column(values, view)
