"""Worker: the actor that wraps one device and works on its own until a lease says stop.

The driver is never on its path: it asks the parameter server, computes, pushes, and the reply to
a push is the next lease. On failure of the user's code the exception travels to the caller with
device and rows; a lost process is noticed by the fleet.
"""

from __future__ import annotations

import os
import time
from typing import Any

import numpy as np
import ray
import torch
from ray.actor import ActorHandle
from torch import nn

from omnivore_ray.cluster.devices import Device
from omnivore_ray.cluster.exchange import (
    Push,
    accept_read_only_arrays,
    decode_answer,
    encode_push,
    fetch,
    pack,
)
from omnivore_ray.cluster.pickling import is_picklable
from omnivore_ray.data.sources import Source
from omnivore_ray.device.share import ShareRunner
from omnivore_ray.device.step import TorchTrainer
from omnivore_ray.errors import OmnivoreError
from omnivore_ray.update.layout import Layout
from omnivore_ray.update.ledger import Answer
from omnivore_ray.workload import Workload


class Worker:
    """One device.

    Ray sets OMP_NUM_THREADS to the cores it reserves, unless the user has set it.

    Args:
        number: Its device number.
        name: Its name in messages.
        device: What it is.
        workload: Without its data.
        train: Training rows.
        validation: Validation rows, or None.
        module: The model; its own copy.
        layout: Of the blocks that travel.
        seed: The run's seed.
    """

    def __init__(
        self,
        *,
        number: int,
        name: str,
        device: Device,
        workload: Workload,
        train: Source,
        validation: Source | None,
        module: nn.Module,
        layout: Layout,
        seed: int,
    ) -> None:
        accept_read_only_arrays()
        if not device.gpus:
            os.environ["CUDA_VISIBLE_DEVICES"] = ""  # Ray leaves it unset: all would be visible
        self._number, self._name, self._device = number, name, device
        self._runner = ShareRunner(
            name=name,
            trainer=TorchTrainer(module, workload, _torch_device(device, name)),
            train=train,
            validation=validation,
            batch_size=workload.batch_size,
            seed=seed,
        )
        self._block = layout.zeros()
        self._state = layout.views(self._block)
        self._pushed = layout.zeros()
        self._out = layout.views(self._pushed)
        self._pacing = np.random.default_rng([seed, number])

    def ready(self) -> str:
        """Answers once the constructor is through."""
        return self._name

    def run(self, server: ActorHandle, request: int) -> None:
        """Works on leases of one request until there are no more.

        Args:
            server: The parameter server.
            request: Number of the request, so that calls of an earlier one are told to stop.

        Raises:
            OmnivoreError: The user's code failed; its exception is the cause.
        """
        try:
            self._work(server, request)
        except OmnivoreError as error:
            if not is_picklable(error.__cause__):  # the message, which has it all, must travel
                raise error from None
            raise

    def _work(self, server: Any, request: int) -> None:
        answer = decode_answer(ray.get(server.ask.remote(self._number, request)))
        while not isinstance(answer, Answer):
            lease, parcel = answer
            begun_s = time.monotonic()
            self._block.copy_(fetch(parcel))
            del parcel, answer
            if lease.kind == "evaluate":
                metrics = self._runner.evaluate(
                    start=lease.start, stop=lease.stop, state=self._state
                )
                self._pace_computation(begun_s, lease.samples)
                self._pace_transfer(server, self._block.nbytes)
                push = Push(self._number, request, lease.id, metrics=metrics)
            else:
                share = self._runner.gradient(
                    batch=lease.batch,
                    start=lease.start,
                    stop=lease.stop,
                    weight=lease.weight,
                    state=self._state,
                    out=self._out,
                )
                self._pace_computation(begun_s, lease.samples)
                compute_s = time.monotonic() - begun_s
                self._pace_transfer(server, 2 * self._block.nbytes)
                push = Push(
                    self._number,
                    request,
                    lease.id,
                    pack(self._pushed),
                    share.present,
                    share.loss,
                    share.finite,
                    compute_s,
                )
            answer = decode_answer(ray.get(server.push.remote(encode_push(push))))

    def _pace_computation(self, begun_s: float, samples: int) -> None:
        """Waits as long as the device that is emulated would have computed since ``begun_s``."""
        if self._device.emulate is not None:
            due_s = begun_s + self._device.emulate.compute_s(samples, self._pacing)
            time.sleep(max(0.0, due_s - time.monotonic()))

    def _pace_transfer(self, server: ActorHandle, moved_bytes: int) -> None:
        """Waits as long as its link would have moved so many bytes."""
        if self._device.emulate is not None:
            wait_s = self._device.emulate.transfer_s(moved_bytes)
            if self._device.emulate.shared_link:
                wait_s = float(ray.get(server.use_link.remote(wait_s)))  # type: ignore[arg-type]
            time.sleep(wait_s)


def _torch_device(device: Device, name: str) -> torch.device:
    if not device.gpus:
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise OmnivoreError(f"{name} was declared with a GPU, which torch cannot use there")
    return torch.device("cuda")
