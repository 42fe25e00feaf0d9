"""A source over a map-style torch Dataset."""

from __future__ import annotations

import reprlib
from collections.abc import Mapping
from typing import Any

from torch.utils.data import default_collate

from omnivore_ray.data.order import Rows, permutation


class MapStyleSource:
    """Rows of an object with ``__len__`` and ``__getitem__``, collated as torch's DataLoader does.

    ``__getitems__`` is used when the dataset has it. Row 0 is read once, to see what rows look
    like.

    Args:
        dataset: Its rows are tuples or lists with the target last, or dicts by name.
        argument: What to call it in errors.

    Raises:
        ValueError: It has no length or no rows, row 0 cannot be read or is of another form.
    """

    def __init__(self, dataset: Any, *, argument: str = "data") -> None:
        self._dataset = dataset
        shown = f"{argument} ({type(dataset).__name__})"
        try:
            self._num_rows = len(dataset)
        except (TypeError, NotImplementedError) as error:
            raise ValueError(f"{shown} has no length; give a Dataset with __len__") from error
        if self._num_rows < 1:
            raise ValueError(f"{shown} has 0 rows; give at least one")
        try:
            row = self._read([0])[0]
        except Exception as error:
            raise ValueError(
                f"{shown}: reading row 0 failed with {type(error).__name__}: {error}; "
                "rows are read as dataset[0] ... dataset[len - 1]"
            ) from error
        is_tuple = isinstance(row, (tuple, list)) and len(row) >= 2
        if not is_tuple and not (isinstance(row, Mapping) and row):
            raise ValueError(
                f"{shown}: row 0 is {reprlib.repr(row)}; "
                "a row is (inputs..., target) or a dict with the target under a name"
            )

    def __len__(self) -> int:
        return self._num_rows

    def take(self, rows: Rows) -> tuple[Any, ...] | dict[str, Any]:
        """The rows in the order given, collated; the dataset's own exceptions pass through."""
        batch = default_collate(self._read(rows.tolist()))
        return dict(batch) if isinstance(batch, Mapping) else tuple(batch)

    def order(self, seed: int, epoch: int) -> Rows:
        """A shuffle of all rows."""
        return permutation(len(self), seed, epoch)

    def _read(self, rows: list[int]) -> list[Any]:
        if hasattr(self._dataset, "__getitems__"):
            return list(self._dataset.__getitems__(rows))
        return [self._dataset[row] for row in rows]
