"""History: one row per applied update, the table every claim is computed from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet

#: Columns of `Result.history`, in order. ``time_s`` is seconds since the run began; ``compute_s``
#: the longest computation of a member; ``bytes`` parameters and gradients moved for the update.
COLUMNS = (
    "version",
    "group",
    "version_read",
    "staleness",
    "learning_rate",
    "momentum",
    "samples",
    "loss",
    "time_s",
    "compute_s",
    "bytes",
)

_WHOLE = ("version", "group", "version_read", "staleness", "samples", "bytes")
_SCHEMA = pa.schema([(name, pa.int64() if name in _WHOLE else pa.float64()) for name in COLUMNS])

#: Most points of `History.curve`.
_CURVE_POINTS = 200


class History:
    """Rows of one request, kept as columns."""

    def __init__(self) -> None:
        self.columns: dict[str, list[Any]] = {name: [] for name in COLUMNS}

    @classmethod
    def read(cls, file: Path) -> History:
        """The rows that `write` wrote.

        Raises:
            ValueError: The file holds something else.
        """
        table = pyarrow.parquet.read_table(file)
        if table.schema != _SCHEMA or any(column.null_count for column in table.columns):
            raise ValueError(f"it has {table.schema.names}, not the columns of a history")
        history = cls()
        history.columns.update(table.to_pydict())
        return history

    def write(self, file: Path) -> None:
        """Writes a Parquet file."""
        pyarrow.parquet.write_table(pa.table(self.columns, schema=_SCHEMA), file)

    def __len__(self) -> int:
        return len(self.columns["version"])

    def append(self, **row: Any) -> None:
        """Adds one applied update; every column must be given."""
        for name, values in self.columns.items():
            values.append(row[name])

    def truncate(self, version: int) -> None:
        """Forgets the updates after ``version``: they were taken back."""
        while self.columns["version"] and self.columns["version"][-1] > version:
            for values in self.columns.values():
                values.pop()

    def mean(self, column: str, last: int | None = None) -> float:
        """Mean of a column over the last rows (all by default); nan without rows."""
        values = self.columns[column][-last:] if last else self.columns[column]
        return sum(values) / len(values) if values else float("nan")

    def curve(self, start_s: float) -> tuple[tuple[int, float, float], ...]:
        """``(updates, seconds since start_s, mean loss since the point before)`` points."""
        rows = len(self)
        step = max(1, -(-rows // _CURVE_POINTS))
        losses, times = self.columns["loss"], self.columns["time_s"]
        edges = range(step, rows + step, step)
        points = []
        for edge in edges:
            piece = losses[edge - step : edge]
            stop = min(edge, rows)
            points.append((stop, times[stop - 1] - start_s, sum(piece) / len(piece)))
        return tuple(points)
