"""Dealing devices to groups, and rows to devices: balanced, complete, in proportion."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from omnivore_ray.update.groups import deal_devices, deal_rows

SPEED = st.floats(0.01, 100.0)


@st.composite
def fleets(draw):
    speeds = draw(st.lists(SPEED, min_size=1, max_size=12))
    return speeds, draw(st.integers(1, len(speeds)))


@given(fleets())
def test_every_device_is_in_exactly_one_group_and_no_group_is_empty(fleet):
    speeds, groups = fleet
    dealt = deal_devices(speeds, groups)
    assert len(dealt) == groups
    assert all(dealt)
    assert sorted(device for members in dealt for device in members) == list(range(len(speeds)))
    assert dealt == sorted(sorted(members) for members in dealt)


@given(fleets())
def test_uneven_devices_are_dealt_so_that_no_group_could_give_its_slowest_away(fleet):
    """The longest-processing-time rule: without its slowest member no group beats another."""
    speeds, groups = fleet
    dealt = [[speeds[d] for d in members] for members in deal_devices(speeds, groups)]
    slowest_total = min(sum(members) for members in dealt)
    for members in dealt:
        assert sum(members) - min(members) <= slowest_total * (1 + 1e-12)


@given(st.integers(1, 12).flatmap(lambda n: st.tuples(st.just(n), st.integers(1, n))), SPEED)
def test_equal_devices_give_groups_whose_sizes_differ_by_at_most_one(sizes, speed):
    devices, groups = sizes
    dealt = [len(members) for members in deal_devices([speed] * devices, groups)]
    assert max(dealt) - min(dealt) <= 1


def test_one_fast_device_balances_several_slow_ones():
    assert deal_devices([1.0, 4.0, 1.0, 1.0, 1.0], 2) == [[0, 2, 3, 4], [1]]


@pytest.mark.parametrize("groups", [0, 3, -1])
def test_a_number_of_groups_out_of_range_is_refused_with_the_range(groups):
    with pytest.raises(ValueError, match=rf"groups={groups}.*1 to 2"):
        deal_devices([1.0, 1.0], groups)


@pytest.mark.parametrize("speed", [0.0, -1.0, float("nan")])
def test_a_speed_that_is_not_above_zero_is_refused(speed):
    with pytest.raises(ValueError, match="speed of device 1"):
        deal_devices([1.0, speed], 1)


@given(st.integers(0, 50), st.integers(1, 300), st.lists(SPEED, min_size=1, max_size=9), st.data())
def test_rows_are_cut_without_gap_or_overlap_and_in_proportion_within_a_few_rows(
    start, rows, speeds, data
):
    devices = data.draw(st.permutations(range(len(speeds))))
    devices = devices[: data.draw(st.integers(1, len(speeds)))]
    pieces = deal_rows(start, start + rows, devices, speeds)
    edges = [start, *(high for _, _, high in pieces)]
    assert [low for _, low, _ in pieces] == edges[:-1]
    assert edges[-1] == start + rows
    assert all(high > low for _, low, high in pieces)
    assert rows == 1 or all(high - low >= 2 for _, low, high in pieces)  # BatchNorm needs two
    got = dict.fromkeys(devices, 0) | {device: high - low for device, low, high in pieces}
    assert len(got) == len(devices)
    total = sum(speeds[device] for device in devices)
    for device in devices:
        assert abs(got[device] - rows * speeds[device] / total) <= 3 + 1e-9


def test_a_single_row_goes_to_a_neighbour():
    assert deal_rows(0, 4, [0, 1, 2, 3], [1.0] * 4) == [(1, 0, 2), (3, 2, 4)]
    assert deal_rows(0, 32, [0, 1], [1.0, 40.0]) == [(1, 0, 32)]
    assert deal_rows(0, 1, [0, 1, 2], [1.0, 9.0, 1.0]) == [(1, 0, 1)]
    assert deal_rows(10, 40, [0, 1], [1.0, 2.0]) == [(0, 10, 20), (1, 20, 40)]
