"""Worker: the actor that wraps one device and works on its own until a lease says stop.

The driver is never on its path: it asks the parameter server, computes, pushes, and the reply to
a push is the next lease. On failure of the user's code the exception travels to the caller with
device and rows; a lost process is noticed by the fleet.
"""

from __future__ import annotations

import os
import random
import time
import traceback

import numpy as np
import ray
import torch
from ray.actor import ActorHandle
from torch import nn

from omnivore_ray.cluster.devices import Device
from omnivore_ray.cluster.exchange import accept_read_only_arrays, fetch, pack
from omnivore_ray.data.sampler import Sampler
from omnivore_ray.data.sources import Source
from omnivore_ray.device.step import TorchTrainer
from omnivore_ray.device.trainer import Step, Trainer
from omnivore_ray.errors import OmnivoreError
from omnivore_ray.update.ledger import Answer, Lease
from omnivore_ray.update.layout import Layout
from omnivore_ray.workload import Workload

_MOST_ROWS_SHOWN = 8


class Worker:
    """One device.

    Args:
        number: Its device number.
        name: Its name in messages.
        device: What it is.
        threads: Threads torch may use; None leaves torch's own choice.
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
        threads: int | None,
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
        if threads is not None:
            torch.set_num_threads(threads)
        self._number, self._name, self._device, self._seed = number, name, device, seed
        self._batch_size = workload.batch_size
        self._train, self._validation = train, validation
        self._sampler = Sampler(train.order, len(train), workload.batch_size, seed)
        self._trainer: Trainer = TorchTrainer(module, workload, _torch_device(device, name))
        self._layout = layout
        self._block = layout.zeros()
        self._state = layout.views(self._block)
        self._pushed = layout.zeros()
        self._pushed_views = layout.views(self._pushed)
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
        answer = ray.get(server.ask.remote(self._number, request))
        while answer is not Answer.STOP:
            lease, parcel = answer
            begun_s = time.monotonic()
            self._block.copy_(fetch(parcel))
            del parcel, answer
            if lease.kind == "evaluate":
                metrics = self._evaluate(lease)
                self._pace(begun_s, lease.samples, self._layout.nbytes)
                call = server.push_metrics.remote(self._number, request, lease.id, metrics)
            else:
                step, present, finite = self._gradient(lease)
                compute_s = time.monotonic() - begun_s
                self._pace(begun_s, lease.samples, 2 * self._layout.nbytes)
                call = server.push.remote(
                    self._number,
                    request,
                    lease.id,
                    pack(self._pushed),
                    present,
                    step.loss,
                    finite,
                    compute_s,
                )
            answer = ray.get(call)

    def _gradient(self, lease: Lease) -> tuple[Step, bytes, bool]:
        rows = self._sampler.rows(lease.batch, lease.start, lease.stop)
        _seed_everything(self._seed, lease.batch, lease.start)
        try:
            step = self._trainer.gradient(self._state, self._train.take(rows))
        except Exception as error:
            raise self._failure(error, "rows", rows) from error
        present = self._pack(step, lease.weight)
        return step, present, bool(_all_finite(self._layout, self._pushed))

    @torch.no_grad()
    def _pack(self, step: Step, weight: float) -> bytes:
        """Fills the block to push; returns which of its tensors have something to say."""
        present = bytearray(len(self._layout.names))
        for index, name in enumerate(self._layout.names):
            view = self._pushed_views[name]
            if name in step.buffers:
                view.copy_(step.buffers[name])
                present[index] = not torch.equal(view, self._state[name])
                continue
            gradient = step.gradients.get(name)
            if gradient is None:
                view.zero_()
            else:
                torch.mul(gradient, weight, out=view) if weight != 1.0 else view.copy_(gradient)
                present[index] = 1
        return bytes(present)

    def _evaluate(self, lease: Lease) -> dict[str, float]:
        assert self._validation is not None
        sums: dict[str, float] = {}
        for start in range(lease.start, lease.stop, self._batch_size):
            rows = np.arange(start, min(start + self._batch_size, lease.stop))
            try:
                means = self._trainer.evaluate(self._state, self._validation.take(rows))
            except Exception as error:
                raise self._failure(error, "validation rows", rows) from error
            for name, mean in means.items():
                sums[name] = sums.get(name, 0.0) + mean * len(rows)
        return {name: total / lease.samples for name, total in sums.items()}

    def _pace(self, begun_s: float, samples: int, moved_bytes: int) -> None:
        if self._device.emulate is not None:
            due_s = self._device.emulate.seconds(samples, moved_bytes, self._pacing)
            time.sleep(max(0.0, begun_s + due_s - time.monotonic()))

    def _failure(self, error: Exception, what: str, rows: np.ndarray) -> OmnivoreError:
        shown = ", ".join(map(str, rows[:_MOST_ROWS_SHOWN].tolist()))
        more = f", ... ({len(rows)} rows)" if len(rows) > _MOST_ROWS_SHOWN else ""
        return OmnivoreError(
            f"the workload failed on {self._name} with {what} {shown}{more}: "
            f"{type(error).__name__}: {error}\n\n{''.join(traceback.format_exception(error))}"
        )


def _torch_device(device: Device, name: str) -> torch.device:
    if not device.gpus:
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise OmnivoreError(f"{name} was declared with a GPU, which torch cannot use there")
    return torch.device("cuda")


def _seed_everything(*parts: int) -> None:
    """Makes dropout and augmentation depend on the rows, not on who computes them."""
    word = int(np.random.SeedSequence(parts).generate_state(1)[0])
    torch.manual_seed(word)
    np.random.seed(word)
    random.seed(word)


def _all_finite(layout: Layout, block: torch.Tensor) -> bool:
    for dtype, (start, stop) in layout.spans.items():
        if dtype.is_floating_point:
            values = block[start:stop].view(dtype)
            if not torch.isfinite(values.sum(dtype=torch.promote_types(dtype, torch.float32))):
                return False
    return True
