import pickle

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, IterableDataset, Subset, TensorDataset

from omnivore_ray.data.arrays import ArraySource
from omnivore_ray.data.map_style import MapStyleSource
from omnivore_ray.data.sources import Source, as_source


class Tuples(Dataset):
    def __len__(self):
        return 5

    def __getitem__(self, row):
        return torch.full((2,), float(row)), row


class Dicts(Tuples):
    def __getitem__(self, row):
        return {"text": f"row {row}", "image": np.full(3, row), "target": row}


class Batched(Tuples):
    def __getitem__(self, row):
        raise AssertionError("__getitems__ is there to be used")

    def __getitems__(self, rows):
        return [(torch.tensor(row), row) for row in rows]


class Stream(IterableDataset):
    def __iter__(self):
        return iter([])

    def __len__(self):
        return 3


class NoLength(Dataset):
    def __getitem__(self, row):
        return row, row


class Broken(Tuples):
    def __getitem__(self, row):
        raise KeyError("label")


class Bare(Tuples):
    def __getitem__(self, row):
        return torch.zeros(3)


class Empty(Tuples):
    def __len__(self):
        return 0


class Own:
    def __init__(self, num_rows):
        self.num_rows = num_rows

    def __len__(self):
        return self.num_rows

    def take(self, rows):
        return (torch.from_numpy(rows), torch.from_numpy(rows))

    def order(self, seed, epoch):
        return np.arange(self.num_rows)


def test_a_map_style_dataset_is_collated_in_the_order_asked():
    batch = as_source(Tuples()).take(np.array([4, 0, 4]))
    assert isinstance(batch, tuple)
    assert batch[0].tolist() == [[4, 4], [0, 0], [4, 4]]
    assert batch[1].tolist() == [4, 0, 4]


def test_strings_of_dict_rows_survive_as_lists():
    batch = as_source(Dicts()).take(np.array([3, 1]))
    assert batch["text"] == ["row 3", "row 1"]
    assert batch["image"].tolist() == [[3, 3, 3], [1, 1, 1]]
    assert batch["target"].tolist() == [3, 1]


@pytest.mark.parametrize("dataset", [Batched(), Subset(Tuples(), [0, 1, 2, 3, 4])])
def test_getitems_is_used_when_there(dataset):
    assert as_source(dataset).take(np.array([2, 1]))[1].tolist() == [2, 1]


def test_a_datasets_own_exception_passes_through_when_training():
    class FailsLater(Tuples):
        def __getitem__(self, row):
            if row == 3:
                raise RuntimeError("corrupt image")
            return super().__getitem__(row)

    with pytest.raises(RuntimeError, match="corrupt image"):
        as_source(FailsLater()).take(np.array([1, 3]))


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        ((np.zeros(5), np.zeros(5)), ArraySource),
        ([torch.zeros(5), torch.zeros(5)], ArraySource),
        ({"image": np.zeros(5), "target": np.zeros(5)}, ArraySource),
        (Tuples(), MapStyleSource),
        (TensorDataset(torch.zeros(5, 2), torch.zeros(5)), MapStyleSource),
        (Own(5), Own),
    ],
)
def test_every_form_becomes_a_source_that_pickles(data, kind):
    source = as_source(data)
    assert isinstance(source, kind)
    assert isinstance(source, Source)
    assert len(source) == 5
    assert sorted(source.order(0, 1)) == [0, 1, 2, 3, 4]
    again = pickle.loads(pickle.dumps(source))
    assert len(again.take(again.order(0, 0))) == 2
    assert as_source(source) is source


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (None, r"data=None \(NoneType\) is not training data"),
        (7, r"data=7 \(int\) is not training data"),
        ([], "has 0 entries"),
        (np.zeros((3, 2)), r"one array of shape \(3, 2\).*give \(inputs, targets\)"),
        (Stream(), "iterable.*map-style"),
        (NoLength(), r"data \(NoLength\) has no length"),
        (Empty(), "0 rows"),
        (Own(0), "0 rows"),
        (Broken(), "reading row 0 failed with KeyError: 'label'"),
        (Bare(), "row 0 is tensor"),
        ("no/such/folder", "no/such/folder.*no such file"),
    ],
)
def test_anything_else_is_refused_in_words(data, words):
    with pytest.raises(ValueError, match=words):
        as_source(data)
