import os
import pickle
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from omnivore_ray.data import datasets
from omnivore_ray.data.parquet import WINDOW_GROUPS, ParquetSource
from omnivore_ray.data.sampler import Sampler
from omnivore_ray.data.sources import Source, as_source


def every_kind(num_rows=10, first=0):
    rows = np.arange(first, first + num_rows)
    tensors = np.stack([np.full((2, 3), row, np.float32) for row in rows])
    return pa.table(
        {
            "number": pa.array(rows),
            "half": pa.array(rows.astype(np.float16)),
            "flag": pa.array(rows % 2 == 0),
            "fixed": pa.FixedSizeListArray.from_arrays(np.repeat(rows, 2).astype("f4"), 2),
            "list": pa.array([[float(row), 0.5, 1.0] for row in rows]),
            "nested": pa.array([[[row, 1], [2, 3], [4, 5]] for row in rows]),
            "tensor": pa.FixedShapeTensorArray.from_numpy_ndarray(tensors),
            "text": pa.array([f"row {row}" for row in rows]),
            "category": pa.array([f"{row % 3}" for row in rows]).dictionary_encode(),
            "target": pa.array(rows),
        }
    )


def write(folder, tables, row_group_size=4):
    paths = []
    for index, table in enumerate(tables):
        paths.append(folder / f"part-{index}.parquet")
        pq.write_table(table, paths[-1], row_group_size=row_group_size)
    return paths


def wide(folder, num_groups, rows_per_group, row_width):
    """A file of ``num_groups`` groups of ``rows_per_group * row_width * 4`` bytes."""
    path = folder / "wide.parquet"
    rows = np.arange(num_groups * rows_per_group)
    values = np.repeat(rows.astype("f4"), row_width)
    table = pa.table(
        {"input": pa.FixedSizeListArray.from_arrays(values, row_width), "target": rows}
    )
    pq.write_table(table, path, row_group_size=rows_per_group)
    return path


def test_every_kind_of_column_comes_back_in_the_order_asked(tmp_path):
    write(tmp_path, [every_kind(10), every_kind(7, first=10)])
    source = as_source(tmp_path)
    assert isinstance(source, Source)
    assert len(source) == 17
    rows = np.array([16, 0, 9, 10, 3, 3])
    batch = source.take(rows)
    expected = torch.from_numpy(rows)
    assert torch.equal(batch["number"], expected)
    assert torch.equal(batch["half"], expected.half())
    assert torch.equal(batch["flag"], expected % 2 == 0)
    assert torch.equal(batch["fixed"], expected[:, None].float().expand(-1, 2))
    assert torch.equal(batch["list"][:, 0], expected.double())
    assert batch["list"].shape == (6, 3)
    assert batch["nested"].shape == (6, 3, 2)
    assert torch.equal(batch["nested"][:, 0, 0], expected)
    assert torch.equal(batch["tensor"], expected[:, None, None].float().expand(-1, 2, 3))
    assert batch["text"] == [f"row {row}" for row in rows]
    assert batch["category"] == [f"{row % 3}" for row in rows]
    batch["tensor"].fill_(0)
    assert source.take(rows)["tensor"].any()


def test_inputs_and_target_give_tuple_batches(tmp_path):
    write(tmp_path, [every_kind()])
    source = datasets.parquet(tmp_path, inputs=["tensor"], target="number")
    batch = source.take(np.array([5, 2]))
    assert isinstance(batch, tuple)
    assert batch[0].shape == (2, 2, 3)
    assert batch[1].tolist() == [5, 2]


def test_a_file_a_list_and_a_folder_are_the_same_rows(tmp_path, monkeypatch):
    paths = write(tmp_path, [every_kind(5), every_kind(5, first=5)])
    monkeypatch.chdir(tmp_path)
    for given in (paths, [str(path) for path in paths], str(tmp_path), Path(".")):
        assert as_source(given).take(np.arange(10))["number"].tolist() == list(range(10))
    assert len(as_source(paths[0])) == 5


def test_a_pickle_is_small_and_reads_from_any_folder(tmp_path, monkeypatch):
    wide(tmp_path, 4, 100, 10)
    monkeypatch.chdir(tmp_path)
    source = as_source("wide.parquet")
    source.take(np.arange(400))
    body = pickle.dumps(source)
    assert len(body) < 2000
    monkeypatch.chdir("/")
    assert pickle.loads(body).take(np.array([399]))["target"].tolist() == [399]


@pytest.mark.parametrize("batch_size", [7, 64, 100])
def test_an_epoch_uses_each_row_once_and_reads_each_row_group_once(
    tmp_path, monkeypatch, batch_size
):
    source = as_source(wide(tmp_path, 10, 30, 2))
    reads = []
    read = ParquetSource._read
    monkeypatch.setattr(
        ParquetSource, "_read", lambda self, group: reads.append(group) or read(self, group)
    )
    sampler = Sampler(source.order, len(source), batch_size, 3)
    seen = []
    source = pickle.loads(pickle.dumps(source))
    for batch in range(sampler.batches_per_epoch):
        seen += source.take(sampler.rows(batch, 0, sampler.size(batch)))["target"].tolist()
    assert sorted(seen) == list(range(300))
    assert sorted(reads) == list(range(10))


def test_memory_is_bounded_by_the_window_and_not_by_the_file(tmp_path):
    group_bytes = 50 * 2048 * 4
    num_groups = 40
    path = wide(tmp_path, num_groups, 50, 2048)
    before = pa.total_allocated_bytes()
    source = as_source(path)
    sampler = Sampler(source.order, len(source), 32, 0)
    held = []
    for batch in range(sampler.batches_per_epoch):
        source.take(sampler.rows(batch, 0, sampler.size(batch)))
        held.append(pa.total_allocated_bytes() - before)
    assert max(held) < (WINDOW_GROUPS + 1) * group_bytes
    assert max(held) > (WINDOW_GROUPS - 1) * group_bytes
    assert num_groups * group_bytes > 8 * max(held)


def test_orders_differ_between_epochs_and_visit_few_groups_at_a_time(tmp_path):
    source = as_source(wide(tmp_path, 12, 20, 2))
    first, second = source.order(0, 0), source.order(0, 1)
    assert not np.array_equal(first, second)
    for start in range(0, 240, 20 * WINDOW_GROUPS):
        assert len(set(first[start : start + 20 * WINDOW_GROUPS] // 20)) == WINDOW_GROUPS


def one_column(values):
    return pa.table({"x": values, "target": list(range(len(values)))})


@pytest.mark.parametrize(
    ("table", "words"),
    [
        (one_column(pa.array([1, None, 3])), "'x'.*missing values"),
        (one_column(pa.array([[1], [2], None])), "'x'.*missing values"),
        (one_column(pa.array([[1], [2, 3]])), "'x' has lists of 1 to 2 entries"),
        (one_column(pa.array([1, 2], pa.timestamp("s"))), "'x' is of type timestamp"),
        (one_column(pa.array([{"a": 1}])), "'x' is of type struct"),
        (one_column(pa.array([], pa.int64())), "0 rows"),
    ],
)
def test_what_no_tensor_holds_is_refused_before_training(tmp_path, table, words):
    write(tmp_path, [table])
    with pytest.raises(ValueError, match=words):
        as_source(tmp_path)


def test_a_missing_value_in_a_later_group_is_found_before_training(tmp_path):
    write(tmp_path, [one_column(pa.array([1.0] * 9 + [None]))])
    with pytest.raises(ValueError, match=r"'x' of .* missing values in row group 2"):
        as_source(tmp_path)


def test_lists_of_another_length_in_a_later_group_name_the_group(tmp_path):
    write(tmp_path, [one_column(pa.array([[1, 2]] * 4 + [[3]] * 4))])
    with pytest.raises(ValueError, match=r"row group 1 .*'x'.*shape \(1,\).*\(2,\)"):
        as_source(tmp_path).take(np.array([5, 1]))


def test_bad_files_are_refused_in_words(tmp_path):
    with pytest.raises(ValueError, match="no such file"):
        as_source(tmp_path / "nowhere.parquet")
    with pytest.raises(ValueError, match=r"holds no \*.parquet file"):
        as_source(tmp_path)
    text = tmp_path / "text.parquet"
    text.write_text("not parquet, but long enough to hold a footer")
    with pytest.raises(ValueError, match=r"text.parquet.*not a readable Parquet file"):
        as_source(text)
    text.unlink()
    write(tmp_path, [every_kind(), one_column(pa.array([1, 2]))])
    with pytest.raises(ValueError, match=r"part-1.parquet has another schema"):
        as_source(tmp_path)
    with pytest.raises(ValueError, match="no column 'label'; it has number"):
        datasets.parquet(tmp_path / "part-0.parquet", inputs=["number"], target="label")
    with pytest.raises(ValueError, match="give a list of column names"):
        datasets.parquet(tmp_path / "part-0.parquet", inputs="number")


def test_damage_after_the_start_is_an_error_and_never_other_rows(tmp_path):
    path = wide(tmp_path, 6, 50, 20)
    source = as_source(path)
    wide(tmp_path, 6, 40, 20)
    with pytest.raises(ValueError, match=r"row group 5 .*had 50 at the start"):
        source.take(np.array([299]))
    os.truncate(path, 1000)
    with pytest.raises(ValueError, match=r"wide.parquet"):
        source.take(np.array([299]))
