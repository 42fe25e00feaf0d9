"""Arrow columns as NumPy arrays whose first axis counts rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray


def column_values(column: pa.ChunkedArray, where: str) -> NDArray[Any]:
    """Decodes one column, without a copy where Arrow allows it.

    Args:
        column: n rows of numbers, booleans, strings, bytes, fixed-shape tensors, or lists (of
            lists ...) of numbers that all have one length.
        where: What to call it in errors.

    Returns:
        n x (shape of an entry); dtype object for strings and bytes. May be read-only.

    Raises:
        ValueError: Of another type, with missing values, or with lists of different lengths.
    """
    array = column.combine_chunks()
    if isinstance(array, pa.ChunkedArray):
        array = array.chunk(0)
    return _values(array, where)


def _values(array: Any, where: str) -> NDArray[Any]:
    kind = array.type
    if array.null_count:
        raise ValueError(f"{where} has missing values; fill them or drop the rows")
    if isinstance(kind, pa.FixedShapeTensorType):
        tensors: NDArray[Any] = array.to_numpy_ndarray()
        return tensors
    if pa.types.is_dictionary(kind):
        return _values(array.dictionary_decode(), where)
    if pa.types.is_fixed_size_list(kind):
        inner = _values(array.flatten(), where)
        return inner.reshape(len(array), kind.list_size, *inner.shape[1:])
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        lengths = np.diff(array.offsets.to_numpy())
        if lengths.min() != lengths.max():
            raise ValueError(
                f"{where} has lists of {lengths.min()} to {lengths.max()} entries; "
                "pad them to one length"
            )
        inner = _values(array.flatten(), where)
        return inner.reshape(len(array), int(lengths[0]), *inner.shape[1:])
    if (
        pa.types.is_integer(kind)
        or pa.types.is_floating(kind)
        or pa.types.is_boolean(kind)
        or pa.types.is_string(kind)
        or pa.types.is_large_string(kind)
        or pa.types.is_binary(kind)
        or pa.types.is_large_binary(kind)
    ):
        values: NDArray[Any] = array.to_numpy(zero_copy_only=False)
        return values
    raise ValueError(
        f"{where} is of type {kind}, which no tensor holds; convert it to numbers or leave it out"
    )
