"""One block of bytes for tensors of any dtype and shape."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from omnivore_ray.update.layout import Layout

DTYPES = (torch.float32, torch.bfloat16, torch.float64, torch.int64, torch.bool, torch.uint8)
SHAPES = ((), (0,), (3, 0), (1,), (5,), (2, 3), (4, 1, 3))


@st.composite
def tensors(draw):
    kinds = draw(st.lists(st.tuples(st.sampled_from(DTYPES), st.sampled_from(SHAPES)), min_size=1))
    return {
        f"t{index}": torch.randint(0, 2, shape).to(dtype)
        for index, (dtype, shape) in enumerate(kinds)
    }


@given(tensors())
def test_what_is_written_into_the_views_is_read_back_without_overlap(given_tensors):
    layout = Layout.of(given_tensors)
    block = layout.zeros()
    assert block.shape == (layout.nbytes,)
    for name, view in layout.views(block).items():
        view.copy_(given_tensors[name])
    for name, view in layout.views(block.clone()).items():
        assert view.dtype == given_tensors[name].dtype
        assert view.shape == given_tensors[name].shape
        assert torch.equal(view, given_tensors[name])


@given(tensors())
def test_a_dtype_fills_one_span_so_that_blocks_add_tensor_by_tensor(given_tensors):
    layout = Layout.of(given_tensors)
    total, block = layout.zeros(), layout.zeros()
    for target in (total, block):
        for name, view in layout.views(target).items():
            view.copy_(given_tensors[name])
    layout.add(total, block)
    for name, view in layout.views(total).items():
        assert torch.equal(view, given_tensors[name] + given_tensors[name])
    spans = sorted(layout.spans.values())
    assert all(stop <= start for (_, stop), (start, _) in itertools.pairwise(spans))


def test_names_are_in_the_order_given_within_a_dtype():
    layout = Layout.of({"b": torch.zeros(1), "a": torch.zeros(1), "c": torch.zeros(1)})
    assert layout.names == ("b", "a", "c")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_a_view_is_memory_of_the_block(dtype):
    layout = Layout.of({"weight": torch.zeros(3, dtype=dtype)})
    block = layout.zeros()
    layout.views(block)["weight"].fill_(1.5)
    assert block.view(dtype)[:3].tolist() == [1.5] * 3
