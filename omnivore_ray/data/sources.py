"""What training data has to offer, and how what users have becomes that."""

from __future__ import annotations

import reprlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol, TypeAlias, runtime_checkable

import numpy as np
import torch
from torch.utils.data import IterableDataset

from omnivore_ray.data.arrays import ArraySource
from omnivore_ray.data.map_style import MapStyleSource
from omnivore_ray.data.order import Rows

#: Tuple of tensors whose last entry holds the targets, or name -> tensor or list of strings.
Batch: TypeAlias = tuple[Any, ...] | dict[str, Any]


@runtime_checkable
class Source(Protocol):
    """Rows that can be read by number, and the order in which each epoch visits them."""

    def __len__(self) -> int:
        """Number of rows."""
        ...

    def take(self, rows: Rows) -> Batch:
        """Reads rows.

        Args:
            rows: Row numbers, in any order.

        Returns:
            The rows in that order, in fresh memory: row ``i`` of every entry is ``rows[i]``.
        """
        ...

    def order(self, seed: int, epoch: int) -> Rows:
        """The order of one epoch: every row number once, a pure function of the arguments."""
        ...


_FORMS = (
    "give (inputs, targets) arrays or tensors, a dict of them, a map-style torch Dataset, "
    "or the path of Parquet files"
)


def as_source(data: Any, argument: str = "data") -> Source:
    """Makes a source of what users have.

    Args:
        data: A tuple or list of arrays or tensors with the targets last; a dict of them; a
            map-style Dataset; a Parquet file, folder or list of files; or a `Source`.
        argument: What to call it in errors.

    Raises:
        ValueError: It is none of these, has no rows, or cannot be read.
    """
    if isinstance(data, (str, Path)) or (
        isinstance(data, (list, tuple))
        and data
        and all(isinstance(part, (str, Path)) for part in data)
    ):
        # Imported here, because a device is checked on machines that have torch but no pyarrow.
        from omnivore_ray.data.parquet import ParquetSource

        return ParquetSource(data, argument=argument)
    if isinstance(data, (list, tuple, Mapping)):
        return ArraySource(data, argument=argument)
    if isinstance(data, (np.ndarray, torch.Tensor)):
        raise ValueError(
            f"{argument} is one array of shape {tuple(data.shape)}: training needs targets too; "
            "give (inputs, targets)"
        )
    if isinstance(data, Source):
        if len(data) < 1:
            raise ValueError(f"{argument} ({type(data).__name__}) has 0 rows; give at least one")
        return data
    if isinstance(data, IterableDataset):
        raise ValueError(
            f"{argument} is {type(data).__name__}, an iterable dataset: rows are read by number; "
            "give a map-style Dataset (__len__ and __getitem__) or Parquet files"
        )
    if hasattr(data, "__getitem__"):
        return MapStyleSource(data, argument=argument)
    raise ValueError(
        f"{argument}={reprlib.repr(data)} ({type(data).__name__}) is not training data; {_FORMS}"
    )
