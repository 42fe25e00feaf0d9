import subprocess
import sys

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from omnivore_ray.data.order import permutation, windowed_permutation


@given(num_rows=st.integers(1, 300), seed=st.integers(0, 2**40), epoch=st.integers(0, 1000))
def test_permutation_has_every_row_once_and_is_repeatable(num_rows, seed, epoch):
    order = permutation(num_rows, seed, epoch)
    assert order.dtype == np.int64
    assert np.array_equal(np.sort(order), np.arange(num_rows))
    assert np.array_equal(order, permutation(num_rows, seed, epoch))


def test_every_seed_and_epoch_has_its_own_order():
    orders = {tuple(permutation(50, seed, epoch)) for seed in range(10) for epoch in range(10)}
    assert len(orders) == 100


def test_every_position_is_equally_likely():
    counts = np.zeros((5, 5))
    for epoch in range(4000):
        counts[np.arange(5), permutation(5, 7, epoch)] += 1
    # 800 expected, standard deviation about 25.
    assert np.abs(counts - 800).max() < 5 * 25


def test_order_is_the_same_in_another_process():
    program = (
        "from omnivore_ray.data.order import *; import numpy as np;"
        "print(permutation(20, 3, 4).tolist(),"
        "windowed_permutation(np.array([5, 0, 7, 2]), 2, 3, 4).tolist())"
    )
    there = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    here = f"{permutation(20, 3, 4).tolist()} " + str(
        windowed_permutation(np.array([5, 0, 7, 2]), 2, 3, 4).tolist()
    )
    assert there.stdout.strip() == here, there.stderr


def test_order_stays_what_it_was():
    """Snapshots restored under a newer NumPy go on in the old order."""
    assert permutation(10, 0, 0).tolist() == [6, 3, 8, 1, 4, 5, 9, 2, 7, 0]
    assert windowed_permutation(np.array([3, 4, 3]), 2, 0, 0).tolist() == [
        4,
        6,
        9,
        5,
        3,
        8,
        7,
        1,
        0,
        2,
    ]


@settings(max_examples=50)
@given(
    sizes=st.lists(st.integers(0, 9), min_size=1, max_size=20).filter(any),
    window=st.integers(1, 5),
    epoch=st.integers(0, 50),
)
def test_windowed_permutation_stays_inside_a_pool_of_groups(sizes, window, epoch):
    group_rows = np.array(sizes)
    order = windowed_permutation(group_rows, window, 5, epoch)
    assert np.array_equal(np.sort(order), np.arange(group_rows.sum()))
    group_of_row = np.repeat(np.arange(len(sizes)), sizes)
    visited = group_of_row[order]
    pools = permutation(len(sizes), 5, epoch)
    start = 0
    for first in range(0, len(sizes), window):
        pool = pools[first : first + window]
        stop = start + group_rows[pool].sum()
        assert set(visited[start:stop]) <= set(pool)
        start = stop


def test_rows_of_a_pool_are_mixed():
    order = windowed_permutation(np.full(8, 100), 4, 0, 0)
    groups_in_a_batch = [len(set(order[i : i + 50] // 100)) for i in range(0, 800, 50)]
    assert groups_in_a_batch == [4] * 16
