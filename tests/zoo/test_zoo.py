import pickle

import numpy as np
import pytest
import torch

from omnivore_ray import zoo
from omnivore_ray.data import datasets
from omnivore_ray.data.sampler import Sampler


def num_parameters(module):
    return sum(parameter.numel() for parameter in module.parameters())


@pytest.mark.parametrize(
    ("net", "expected"),
    [
        # The published counts of Caffe's model zoo.
        (zoo.LeNet(), 431_080),
        (zoo.CifarQuick(), 145_578),
    ],
)
def test_nets_have_the_published_number_of_parameters(net, expected):
    assert num_parameters(net) == expected


def test_caffenet_has_the_published_number_of_parameters():
    with torch.device("meta"):
        net = zoo.CaffeNet()
    assert num_parameters(net) == 60_965_224
    assert net(torch.empty(2, 3, 227, 227, device="meta")).shape == (2, 1000)


@pytest.mark.parametrize("size", [4, 8, 15, 16, 28, 32])
def test_lenet_takes_any_image_size(size):
    net = zoo.LeNet(image_size=size, channels=3, classes=7)
    assert net(torch.zeros(2, 3, size, size)).shape == (2, 7)


def test_lenet_refuses_an_image_that_vanishes():
    with pytest.raises(ValueError, match="image_size=3"):
        zoo.LeNet(image_size=3)


def test_accuracy_counts_samples_and_positions():
    outputs = torch.eye(4)[[0, 1, 2, 3]]
    assert zoo.accuracy(outputs, torch.tensor([0, 1, 2, 0])) == 0.75
    assert zoo.accuracy(outputs.reshape(2, 2, 4), torch.tensor([[0, 1], [0, 0]])) == 0.5


def test_next_character_loss_is_the_mean_over_samples_and_positions():
    torch.manual_seed(0)
    outputs, targets = torch.randn(3, 5, 7), torch.randint(7, (3, 5))
    one_by_one = [-outputs[i, j].log_softmax(0)[targets[i, j]] for i in range(3) for j in range(5)]
    assert torch.allclose(zoo.next_character_loss(outputs, targets), torch.stack(one_by_one).mean())


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    folder = tmp_path_factory.mktemp("texts")
    (folder / "a_gut.txt").write_text("Full fathom five thy father lies.\n" * 40)
    return folder


@pytest.mark.parametrize(
    "make",
    [
        zoo.lenet,
        lambda: zoo.lenet("random", samples=8),
        lambda: zoo.lenet((torch.zeros(8, 3, 12, 12), torch.arange(8) % 2), classes=2),
        lambda: zoo.cifar_quick(samples=8),
        lambda: zoo.char_lstm("random", length=5, samples=8),
    ],
)
def test_a_workload_pickles_and_takes_a_step(make):
    workload = pickle.loads(pickle.dumps(make()))
    model = workload.model()
    inputs, targets = workload.data.train.take(np.arange(8))
    outputs = model(inputs)
    loss = workload.loss(outputs, targets)
    loss.backward()
    assert loss.ndim == 0 and torch.isfinite(loss)
    assert all(parameter.grad is not None for parameter in model.parameters())
    assert 0 <= workload.metrics["accuracy"](outputs, targets) <= 1


def test_caffenet_and_its_data_pickle():
    workload = pickle.loads(pickle.dumps(zoo.caffenet(samples=2)))
    images, labels = workload.data.train.take(np.array([1]))
    assert images.shape == (1, 3, 227, 227) and 0 <= labels[0] < 1000
    assert workload.model.func is zoo.CaffeNet


def test_char_lstm_has_the_symbols_of_its_text(texts):
    workload = zoo.char_lstm(folder=texts, length=16)
    assert workload.model().embedding.num_embeddings == len(
        set("Full fathom five thy father lies.\n")
    )
    inputs, _ = workload.data.train.take(np.arange(4))
    assert workload.model()(inputs).shape[:2] == (4, 16)


def test_char_lstm_learns_a_repeating_text(texts):
    workload = zoo.char_lstm(folder=texts, length=16, batch_size=16)
    _, accuracy = train(workload, updates=60, learning_rate=1.0, momentum=0.9, every=60)
    assert accuracy > 0.7


def test_data_of_another_shape_is_refused():
    wrong = (torch.zeros(4, 3, 28, 28), torch.zeros(4, dtype=torch.int64))
    with pytest.raises(ValueError, match=r"cifar_quick.*\(3, 28\).*\(3, 32\)"):
        zoo.cifar_quick(wrong)
    with pytest.raises(ValueError, match=r"shape \(64,\)"):
        zoo.lenet((torch.zeros(4, 64), torch.zeros(4)))
    with pytest.raises(ValueError, match="dict batches"):
        zoo.lenet({"image": torch.zeros(4, 1, 8, 8), "target": torch.zeros(4)})
    with pytest.raises(ValueError, match="char_lstm"):
        zoo.char_lstm("digits")
    with pytest.raises(ValueError, match="unknown"):
        zoo.lenet("mnist")


def train(workload, *, updates, learning_rate, momentum, every, until=2.0, seed=0):
    """A plain loop; returns (updates done, validation accuracy) once ``until`` is reached."""
    torch.manual_seed(seed)
    model = workload.model()
    optimizer = torch.optim.SGD(
        model.parameters(), lr=learning_rate, momentum=momentum, **workload.optimizer
    )
    split = datasets.as_split(workload.data)
    sampler = Sampler(split.train.order, len(split.train), workload.batch_size, seed)
    inputs, targets = split.validation.take(np.arange(len(split.validation)))
    accuracy = 0.0
    for update in range(updates):
        batch_inputs, batch_targets = split.train.take(
            sampler.rows(update, 0, sampler.size(update))
        )
        optimizer.zero_grad()
        workload.loss(model(batch_inputs), batch_targets).backward()
        optimizer.step()
        if (update + 1) % every == 0:
            with torch.no_grad():
                accuracy = float(workload.metrics["accuracy"](model(inputs), targets))
            if accuracy >= until:
                break
    return update + 1, accuracy


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_lenet_learns_digits_to_97_percent_in_a_plain_loop(seed):
    updates, accuracy = train(
        zoo.lenet("digits"),
        updates=500,
        learning_rate=0.05,
        momentum=0.9,
        every=10,
        until=0.97,
        seed=seed,
    )
    assert accuracy >= 0.97, f"{accuracy:.3f} after {updates} updates"
