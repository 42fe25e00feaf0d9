"""Shuffles that are pure functions of (seed, epoch), the same in every process, on any platform.

They sort by the raw bits of a seeded PCG64. NumPy promises to keep that bit stream between
versions; it makes no such promise for ``Generator.permutation`` (NEP 19), and a run restored
under a newer NumPy has to go on in the order it began with.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Rows = NDArray[np.int64]


def permutation(num_rows: int, seed: int, epoch: int) -> Rows:
    """A shuffle of all row numbers.

    Args:
        num_rows: Number of rows.
        seed: The run's seed, >= 0.
        epoch: Number of the pass over the data, >= 0.

    Returns:
        ``num_rows`` row numbers, each of ``0..num_rows-1`` once.
    """
    return np.argsort(_keys(num_rows, seed, epoch, stream=0), kind="stable").astype(np.int64)


def windowed_permutation(group_rows: Rows, window: int, seed: int, epoch: int) -> Rows:
    """A shuffle that visits few row groups at a time.

    The groups are shuffled, every ``window`` of them in turn are pooled, and the rows of a pool
    are shuffled among themselves.

    Args:
        group_rows: Rows of each group, in file order; row numbers count through the groups.
        window: Groups in a pool, >= 1.
        seed: The run's seed, >= 0.
        epoch: Number of the pass over the data, >= 0.

    Returns:
        Every row number once.
    """
    groups = permutation(len(group_rows), seed, epoch)
    sizes = group_rows[groups]
    ends = np.cumsum(sizes)
    first_rows = (np.cumsum(group_rows) - group_rows)[groups]
    rows = np.arange(ends[-1]) + np.repeat(first_rows - (ends - sizes), sizes)
    pools = np.repeat(np.arange(len(groups)) // window, sizes)
    shuffled = np.lexsort((_keys(len(rows), seed, epoch, stream=1), pools))
    order: Rows = rows[shuffled].astype(np.int64)
    return order


def _keys(count: int, seed: int, epoch: int, stream: int) -> NDArray[np.uint64]:
    entropy = np.random.SeedSequence([seed, epoch], spawn_key=(stream,))
    bits: NDArray[np.uint64] = np.random.PCG64(entropy).random_raw(count)
    return bits
