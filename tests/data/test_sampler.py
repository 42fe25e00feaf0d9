import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from omnivore_ray.data.order import permutation
from omnivore_ray.data.sampler import Sampler, batch_epoch, batch_samples, batches_per_epoch


def make(num_rows, batch_size, seed=0):
    return Sampler(lambda s, e: permutation(num_rows, s, e), num_rows, batch_size, seed)


@given(
    num_rows=st.integers(1, 60),
    batch_size=st.integers(1, 70),
    seed=st.integers(0, 5),
    first_epoch=st.integers(0, 3),
    data=st.data(),
)
def test_each_row_once_per_epoch_for_any_shares(num_rows, batch_size, seed, first_epoch, data):
    sampler = make(num_rows, batch_size, seed)
    per_epoch = sampler.batches_per_epoch
    used = []
    for batch in range(first_epoch * per_epoch, (first_epoch + 1) * per_epoch):
        assert sampler.epoch(batch) == first_epoch
        size = sampler.size(batch)
        cuts = data.draw(st.lists(st.integers(0, size), max_size=4).map(sorted))
        for start, stop in zip([0, *cuts], [*cuts, size], strict=True):
            used.append(sampler.rows(batch, start, stop))
    assert np.array_equal(np.sort(np.concatenate(used)), np.arange(num_rows))


def test_last_short_batch_is_used():
    assert [batch_samples(10, 4, batch) for batch in range(6)] == [4, 4, 2, 4, 4, 2]
    assert [batch_epoch(10, 4, batch) for batch in range(6)] == [0, 0, 0, 1, 1, 1]
    assert batches_per_epoch(10, 4) == 3
    assert batches_per_epoch(8, 4) == 2
    assert batch_samples(8, 4, 1) == 4
    assert batch_samples(3, 64, 5) == 3


def test_same_seed_same_order_and_other_seed_or_epoch_another():
    whole = [make(40, 40, seed).rows(epoch, 0, 40).tolist() for seed, epoch in ORDERS]
    assert whole[0] == make(40, 40, 1).rows(0, 0, 40).tolist()
    assert len({tuple(order) for order in whole}) == len(ORDERS)


ORDERS = [(1, 0), (1, 1), (2, 0), (2, 1)]


def test_groups_that_straddle_an_epochs_end_make_no_order_twice():
    made = []

    def order(seed, epoch):
        made.append(epoch)
        return permutation(9, seed, epoch)

    sampler = Sampler(order, 9, 3, 0)
    for batch in (0, 2, 3, 2, 4, 1, 5, 6, 5, 7):
        sampler.rows(batch, 0, 1)
    assert made == [0, 1, 2]


@pytest.mark.parametrize(
    ("batch", "start", "stop"), [(0, 0, 5), (2, 0, 3), (0, 3, 2), (0, -1, 2), (-1, 0, 1)]
)
def test_a_share_outside_its_batch_is_refused(batch, start, stop):
    with pytest.raises(ValueError, match="samples"):
        make(10, 4).rows(batch, start, stop)


@pytest.mark.parametrize(
    ("name", "values"),
    [("num_rows", (0, 4, 0)), ("batch_size", (4, 0, 0)), ("seed", (4, 4, -1))],
)
def test_impossible_numbers_are_refused(name, values):
    with pytest.raises(ValueError, match=name):
        Sampler(lambda seed, epoch: np.arange(4), *values)
