import pickle
import warnings

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from omnivore_ray.data.arrays import ArraySource


def columns(num_rows=6):
    return {
        "float64": np.arange(num_rows * 3, dtype=np.float64).reshape(num_rows, 3),
        "bool": torch.arange(num_rows) % 2 == 0,
        "bfloat16": torch.arange(num_rows * 2).reshape(num_rows, 2).to(torch.bfloat16),
        "float16": torch.arange(num_rows).half(),
        "strided": np.arange(num_rows * 4).reshape(4, num_rows).T[::-1],
        "big_endian": np.arange(num_rows).astype(">f4"),
        "grad": torch.arange(num_rows).float().requires_grad_(),
    }


@given(rows=st.lists(st.integers(0, 5), max_size=12))
def test_take_gives_rows_in_the_order_asked(rows):
    taken = ArraySource(columns()).take(np.array(rows, np.int64))
    for name, values in columns().items():
        if isinstance(values, torch.Tensor):
            expected = values.detach()
        else:
            expected = torch.from_numpy(
                np.ascontiguousarray(values.astype(values.dtype.newbyteorder("=")))
            )
        assert taken[name].dtype == expected.dtype
        assert torch.equal(taken[name], expected[rows])


def test_a_tuple_gives_tuple_batches():
    inputs, targets = torch.arange(8).reshape(4, 2), np.arange(4)
    batch = ArraySource([inputs, targets]).take(np.array([2, 0]))
    assert isinstance(batch, tuple)
    assert batch[0].tolist() == [[4, 5], [0, 1]]
    assert batch[1].tolist() == [2, 0]


def test_strings_become_lists():
    batch = ArraySource({"text": np.array(["a", "bc", "d"]), "target": np.arange(3)}).take(
        np.array([2, 1])
    )
    assert batch["text"] == ["d", "bc"]


def test_what_is_taken_is_never_the_sources_own_memory():
    values = np.zeros((4, 2), np.float32)
    source = ArraySource((values, np.arange(4)))
    source.take(np.arange(4))[0].fill_(7)
    assert values.sum() == 0


def test_pickles_out_of_band_and_works_read_only_without_a_warning():
    source = ArraySource(columns(1000))
    buffers = []
    body = pickle.dumps(source, protocol=5, buffer_callback=buffers.append)
    assert len(body) < 3000
    read_only = [bytes(buffer.raw()) for buffer in buffers]
    back = pickle.loads(body, buffers=read_only)
    rows = np.array([999, 3])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        taken = back.take(rows)
    for name, tensor in source.take(rows).items():
        assert torch.equal(taken[name], tensor)
        taken[name].fill_(1)


def test_tensors_are_held_without_a_copy():
    tensor = torch.zeros(3, 2)
    source = ArraySource((tensor, torch.zeros(3, dtype=torch.bfloat16)))
    tensor[1] = 5
    assert source.take(np.array([1]))[0].tolist() == [[5, 5]]


def test_order_depends_on_seed_and_epoch():
    source = ArraySource((np.zeros(30), np.zeros(30)))
    orders = [source.order(seed, epoch).tolist() for seed, epoch in [(0, 0), (0, 1), (1, 0)]]
    assert len({tuple(order) for order in orders}) == 3
    assert all(sorted(order) == list(range(30)) for order in orders)


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        ((np.zeros(3), np.zeros(4)), r"data\[0\] has 3, data\[1\] has 4"),
        ({"x": np.zeros(3), "y": np.zeros(2)}, r"data\['x'\] has 3, data\['y'\] has 2"),
        ((np.zeros((0, 2)), np.zeros(0)), "0 rows"),
        ((np.zeros(3),), "1 entries; give at least two"),
        ({}, "give a dict"),
        ({1: np.zeros(3)}, "give a dict"),
        (([1, 2], [3, 4]), r"data\[0\]=\[1, 2\] is not an array"),
        ((np.float32(3), np.zeros(3)), "not an array"),
        ((torch.tensor(3.0), torch.zeros(3)), "single number"),
        ((np.array([None, {}]), np.zeros(2)), "dtype object"),
        ((np.zeros(2, "datetime64[s]"), np.zeros(2)), "dtype datetime64"),
        ((torch.eye(3).to_sparse(), torch.zeros(3)), "dense"),
    ],
)
def test_what_is_no_array_is_refused_in_words(arrays, words):
    with pytest.raises(ValueError, match=words):
        ArraySource(arrays)
