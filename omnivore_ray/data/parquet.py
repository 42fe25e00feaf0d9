"""A source over Parquet files that need not fit in memory.

Row groups are decoded on demand and the last few are kept. The order of an epoch pools a few row
groups at a time, so consecutive batches read each group once and memory is bounded by the pool.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from numpy.typing import NDArray

from omnivore_ray.data.columns import column_values
from omnivore_ray.data.order import Rows, windowed_permutation

#: Row groups whose rows are shuffled together, and so kept decoded in each process.
WINDOW_GROUPS = 4

_Paths = str | Path | Sequence[str | Path]


@dataclass(frozen=True, slots=True)
class _Group:
    path: str
    index: int


class ParquetSource:
    """Rows of one or more Parquet files of one schema.

    Numbers become 1-D tensors; lists of one length (fixed-size or not) 2-D and deeper ones;
    Arrow fixed-shape tensors N-D ones; strings and bytes lists. Files should have row groups of a
    few thousand rows: each process keeps `WINDOW_GROUPS` of them decoded. Files are opened where
    they are read, so a source pickles as paths; they must not change while in use.

    Args:
        paths: A file, a folder (all ``*.parquet`` below it, sorted) or a list of files.
        inputs: Columns of a tuple batch before ``target``; None gives dict batches of all columns.
        target: Last entry of a tuple batch; not used without ``inputs``.
        argument: What to call the paths in errors.

    Raises:
        ValueError: Nothing is there, a file cannot be read, schemas differ, there are 0 rows, a
            column is missing, has nulls, or is of a type that no tensor holds.
    """

    def __init__(
        self,
        paths: _Paths,
        *,
        inputs: Sequence[str] | None = None,
        target: str = "target",
        argument: str = "data",
    ) -> None:
        if isinstance(inputs, str):
            raise ValueError(f"inputs={inputs!r}: give a list of column names, e.g. [{inputs!r}]")
        self._argument = argument
        self._as_tuple = inputs is not None
        files = _files(paths, argument)
        schema = _open(files[0], argument).schema_arrow
        self._names = tuple(schema.names) if inputs is None else (*inputs, target)
        for name in self._names:
            if name not in schema.names:
                raise ValueError(
                    f"{argument}: {files[0]} has no column {name!r}; it has "
                    f"{', '.join(schema.names)}"
                )
        groups: list[_Group] = []
        group_rows: list[int] = []
        for path in files:
            file = _open(path, argument)
            if not file.schema_arrow.equals(schema):
                raise ValueError(
                    f"{argument}: {path} has another schema than {files[0]}; "
                    "give files of one schema"
                )
            self._refuse_nulls(path, file.metadata)
            for index in range(file.metadata.num_row_groups):
                groups.append(_Group(path, index))
                group_rows.append(file.metadata.row_group(index).num_rows)
        self._groups = tuple(groups)
        self._group_rows = np.array(group_rows, np.int64)
        self._ends = np.cumsum(self._group_rows)
        if not group_rows or self._ends[-1] == 0:
            raise ValueError(f"{argument}={_shown(paths)} has 0 rows; give at least one")
        self._cache: OrderedDict[int, dict[str, NDArray[Any]]] = OrderedDict()
        first = self._read(int(np.flatnonzero(self._group_rows)[0]))
        self._shapes = {name: values.shape[1:] for name, values in first.items()}

    def __len__(self) -> int:
        return int(self._ends[-1])

    def take(self, rows: Rows) -> tuple[Any, ...] | dict[str, Any]:
        """The rows in the order given; each row group among them is read at most once."""
        groups = np.searchsorted(self._ends, rows, side="right")
        found, firsts = np.unique(groups, return_index=True)
        columns: dict[str, NDArray[Any]] = {}
        # In order of appearance: groups of a pool that ends are used before those of the next
        # one push them out.
        for group in found[np.argsort(firsts)].tolist():
            places = np.flatnonzero(groups == group)
            local = rows[places] - (self._ends[group] - self._group_rows[group])
            for name, values in self._group(group).items():
                if name not in columns:
                    columns[name] = np.empty((len(rows), *self._shapes[name]), values.dtype)
                columns[name][places] = values[local]
        batch = {
            name: values.tolist() if values.dtype == object else torch.from_numpy(values)
            for name, values in columns.items()
        }
        return tuple(batch[name] for name in self._names) if self._as_tuple else batch

    def order(self, seed: int, epoch: int) -> Rows:
        """Row groups shuffled, and the rows of every few of them among themselves."""
        return windowed_permutation(self._group_rows, WINDOW_GROUPS, seed, epoch)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_cache": OrderedDict()}

    def _group(self, group: int) -> dict[str, NDArray[Any]]:
        columns = self._cache.pop(group, None)
        if columns is None:
            while len(self._cache) >= WINDOW_GROUPS:
                self._cache.popitem(last=False)
            columns = self._read(group)
            for name, values in columns.items():
                if values.shape[1:] != self._shapes[name]:
                    raise ValueError(
                        f"{self._where(group)}: column {name!r} holds entries of shape "
                        f"{values.shape[1:]}, earlier ones have {self._shapes[name]}; "
                        "give entries of one shape"
                    )
        self._cache[group] = columns
        return columns

    def _read(self, group: int) -> dict[str, NDArray[Any]]:
        where = self._where(group)
        place = self._groups[group]
        try:
            with _open(place.path, self._argument) as file:
                table = file.read_row_group(
                    place.index, columns=list(dict.fromkeys(self._names)), use_threads=False
                )
        except (OSError, pa.ArrowException) as error:
            raise ValueError(f"{where} cannot be read ({error}); write it again") from error
        if table.num_rows != self._group_rows[group]:
            raise ValueError(
                f"{where} has {table.num_rows} rows and had {self._group_rows[group]} at the "
                "start; files must not change during a run"
            )
        return {
            name: column_values(table.column(name), f"{where}: column {name!r}")
            for name in table.column_names
        }

    def _where(self, group: int) -> str:
        place = self._groups[group]
        return f"{self._argument}: row group {place.index} of {place.path}"

    def _refuse_nulls(self, path: str, metadata: pq.FileMetaData) -> None:
        for group in range(metadata.num_row_groups):
            for index in range(metadata.num_columns):
                column = metadata.row_group(group).column(index)
                name = column.path_in_schema.split(".")[0]
                statistics = column.statistics
                if name in self._names and statistics is not None and statistics.null_count:
                    raise ValueError(
                        f"{self._argument}: column {name!r} of {path} has missing values in row "
                        f"group {group}; fill them or drop the rows"
                    )


def _files(paths: _Paths, argument: str) -> list[str]:
    given = [paths] if isinstance(paths, (str, Path)) else list(paths)
    files: list[Path] = []
    for path in (Path(part).absolute() for part in given):
        if not path.exists():
            raise ValueError(f"{argument}={str(path)!r}: no such file or folder")
        files += sorted(path.rglob("*.parquet")) if path.is_dir() else [path]
    if not files:
        raise ValueError(f"{argument}={_shown(paths)} holds no *.parquet file")
    return [str(path) for path in files]


def _open(path: str, argument: str) -> pq.ParquetFile:
    try:
        return pq.ParquetFile(path, memory_map=True)
    except (OSError, pa.ArrowException) as error:
        raise ValueError(
            f"{argument}={path!r} is not a readable Parquet file ({error}); "
            "give .parquet files, or arrays for other formats"
        ) from error


def _shown(paths: _Paths) -> str:
    return repr(str(paths)) if isinstance(paths, (str, Path)) else repr([str(p) for p in paths])
