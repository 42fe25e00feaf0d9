"""The Omnivore paper's networks, each with a workload that is ready to train.

``lenet()``, ``cifar_quick()``, ``caffenet()`` and ``char_lstm()`` take the name of a data set
(`omnivore_ray.data.datasets.load`) with its options, or any data a workload takes.
"""

from omnivore_ray.zoo.caffenet import CaffeNet
from omnivore_ray.zoo.char_lstm import CharLSTM, next_character_loss
from omnivore_ray.zoo.cifar_quick import CifarQuick
from omnivore_ray.zoo.lenet import LeNet
from omnivore_ray.zoo.workloads import accuracy, caffenet, char_lstm, cifar_quick, lenet

__all__ = [
    "CaffeNet",
    "CharLSTM",
    "CifarQuick",
    "LeNet",
    "accuracy",
    "caffenet",
    "char_lstm",
    "cifar_quick",
    "lenet",
    "next_character_loss",
]
