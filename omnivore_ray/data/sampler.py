"""Which rows make up which batch. Batches are numbered 0, 1, 2, ... over all epochs.

The number of samples in a batch needs no data, so whoever hands out batches only needs
`batch_samples`; whoever computes them asks a `Sampler` for row numbers.
"""

from __future__ import annotations

from collections.abc import Callable

from omnivore_ray.data.order import Rows


def batches_per_epoch(num_rows: int, batch_size: int) -> int:
    """Batches in one pass over the data; the last one may be short."""
    return -(-num_rows // batch_size)


def batch_epoch(num_rows: int, batch_size: int, batch: int) -> int:
    """The epoch a batch belongs to; no batch spans two."""
    return batch // batches_per_epoch(num_rows, batch_size)


def batch_samples(num_rows: int, batch_size: int, batch: int) -> int:
    """Samples in a batch: ``batch_size``, or what is left at the end of an epoch."""
    start = batch % batches_per_epoch(num_rows, batch_size) * batch_size
    return min(batch_size, num_rows - start)


class Sampler:
    """Turns (batch number, share of the batch) into row numbers.

    Every row is used exactly once per epoch, into whatever shares each batch is cut and whoever
    computes them. Orders of the two epochs used last are kept, since groups that run side by side
    straddle an epoch's end.

    Args:
        source_order: ``Source.order``: (seed, epoch) to the row numbers of that epoch.
        num_rows: Rows in the source, >= 1.
        batch_size: Samples per batch, >= 1.
        seed: The run's seed, >= 0.

    Raises:
        ValueError: A number is below its bound.
    """

    def __init__(
        self, source_order: Callable[[int, int], Rows], num_rows: int, batch_size: int, seed: int
    ) -> None:
        for name, value, least in (
            ("num_rows", num_rows, 1),
            ("batch_size", batch_size, 1),
            ("seed", seed, 0),
        ):
            if value < least:
                raise ValueError(f"{name}={value!r}: give at least {least}")
        self._source_order = source_order
        self._num_rows = num_rows
        self._batch_size = batch_size
        self._seed = seed
        self._orders: dict[int, Rows] = {}

    @property
    def batches_per_epoch(self) -> int:
        """Batches in one pass over the data."""
        return batches_per_epoch(self._num_rows, self._batch_size)

    def epoch(self, batch: int) -> int:
        """The epoch the batch belongs to."""
        return batch_epoch(self._num_rows, self._batch_size, batch)

    def size(self, batch: int) -> int:
        """Samples in the batch."""
        return batch_samples(self._num_rows, self._batch_size, batch)

    def rows(self, batch: int, start: int, stop: int) -> Rows:
        """Row numbers of samples ``start`` to ``stop`` (excluded) of a batch.

        Raises:
            ValueError: The share reaches outside the batch.
        """
        if batch < 0 or not 0 <= start <= stop <= self.size(batch):
            raise ValueError(
                f"rows(batch={batch}, start={start}, stop={stop}): "
                f"batches count from 0 and this one has {self.size(batch)} samples"
            )
        first = batch % self.batches_per_epoch * self._batch_size
        return self._order(self.epoch(batch))[first + start : first + stop]

    def _order(self, epoch: int) -> Rows:
        order = self._orders.pop(epoch, None)
        if order is None:
            order = self._source_order(self._seed, epoch)
        self._orders[epoch] = order
        while len(self._orders) > 2:
            del self._orders[next(iter(self._orders))]
        return order
