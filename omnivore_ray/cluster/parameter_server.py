"""ParameterServer: the threaded actor that hands out leases and merges group updates.

One lock around one `Session`; a device without work waits on its condition. The run's clock is
here and nowhere else. On failure: a worker's call that never comes is taken back by the session's
deadlines; if this actor dies, the run continues from its last checkpoint in a new fleet.
"""

from __future__ import annotations

import copy
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from omnivore_ray.cluster.exchange import (
    Parcel,
    Push,
    accept_read_only_arrays,
    decode_push,
    encode_answer,
    publish,
    receive,
)
from omnivore_ray.cluster.pickling import check_picklable
from omnivore_ray.data.sampler import batch_samples
from omnivore_ray.strategy import Outcome, Request
from omnivore_ray.update.checkpoint import load_checkpoint, read_history, write_checkpoint
from omnivore_ray.update.layout import Layout
from omnivore_ray.update.ledger import Answer, Lease
from omnivore_ray.update.parameters import Parameters, check_model
from omnivore_ray.update.parts import Part, Rules
from omnivore_ray.update.run_state import RunState
from omnivore_ray.update.session import Session
from omnivore_ray.update.stopping import Stopping
from omnivore_ray.workload import Target, Workload

#: A waiting device wakes this often to let overdue leases be taken back.
_TICK_S = 0.5


class ParameterServer:
    """The parameters of one run.

    Args:
        workload: Without its data.
        num_rows: Rows of the training data.
        num_validation_rows: Rows of the validation data; 0 for none.
        seed: The model is made under it.
        evaluate_every_s: Seconds between validations.

    """

    def __init__(
        self,
        *,
        workload: Workload,
        num_rows: int,
        num_validation_rows: int,
        seed: int,
        evaluate_every_s: float,
    ) -> None:
        accept_read_only_arrays()
        torch.set_num_threads(1)  # it shares its cores with workers, and waiting threads spin
        self._workload = workload
        self._num_rows = num_rows
        self._num_validation_rows = num_validation_rows if workload.metrics else 0
        self._evaluate_every_s = evaluate_every_s
        self._seed = seed
        self._parameters: Parameters
        self._changed = threading.Condition()
        self._session: Session | None = None
        self._request_number = -1
        self._state = RunState()
        self._at: str | None = None  # the checkpoint the parameters are exactly at
        self._link_free_s = 0.0  # run clock at which the emulated shared link is free
        self._clock_zero_s = time.monotonic()
        self._clock_started = False

    # -- for the fleet --------------------------------------------------------------------------

    def make_model(self) -> tuple[nn.Module, Layout]:
        """Makes the model, once; returns it for the workers, with the layout of what travels.

        Raises:
            ValueError: The model cannot be supported; says which part and why.
        """
        torch.manual_seed(self._seed)
        module = self._workload.model()
        check_model(module)
        check_picklable(module, "Workload.model()")
        self._parameters = Parameters(copy.deepcopy(module), self._workload.optimizer)
        return module, self._parameters.layout

    def begin(
        self,
        number: int,
        request: Request,
        *,
        groups: Sequence[Sequence[int]],
        speeds: Sequence[float],
        target: Target | None,
        time_limit_s: float | None,
        own_checkpoint: str | None,
    ) -> None:
        """Starts a request.

        Args:
            number: Of the request in this fleet; calls with another are told to stop.
            request: What to run.
            groups: Device numbers of each group.
            speeds: Speed of every device.
            target: The run's target.
            time_limit_s: The run's end on the run's clock.
            own_checkpoint: Checkpoint of this very request from before an interruption.
        """
        with self._changed:
            start, used_s = own_checkpoint or request.resume_from, 0.0
            extra: dict[str, Any] = {}
            if start is None:
                self._parameters.restore(self._parameters.initial)
                self._state = RunState()
            elif start != self._at or own_checkpoint:
                self._state, extra = load_checkpoint(start, self._parameters)
                self._clock_not_before(float(extra.get("seconds", 0.0)))
            self._at = None
            if own_checkpoint:
                used_s = float(extra.get("used_s", 0.0))
            if not self._clock_started:
                self._clock_not_before(0.0)
            self._request_number = number
            self._session = Session(
                rules=Rules(
                    batch_samples=self._batch_samples,
                    validation_samples=self._num_validation_rows,
                    evaluate_every_s=self._evaluate_every_s,
                    stopping=Stopping(request=request, target=target, time_limit_s=time_limit_s),
                ),
                parameters=self._parameters,
                state=self._state,
                groups=groups,
                speeds=speeds,
                publish=self._publish,
                now_s=self._now_s(),
                history=read_history(own_checkpoint) if own_checkpoint else None,
                used_s=used_s,
            )

    def progress(self) -> tuple[bool, dict[str, float]]:
        """Whether the request has ended, and its metrics."""
        with self._changed:
            session, now_s = self._running(), self._now_s()
            session.tick(now_s)
            self._changed.notify_all()
            return session.ending is not None, session.progress(now_s)

    def drop(self, device: int, reason: str) -> None:
        """A device is lost."""
        with self._changed:
            self._running().drop(device, reason, self._now_s())
            self._changed.notify_all()

    def stop(self, reason: str) -> None:
        """Ends the request now; what is in flight is refused and owed."""
        with self._changed:
            self._running().stop(reason, self._now_s())
            self._changed.notify_all()

    def checkpoint(self, path: str) -> None:
        """Writes the state of this moment, the request's history and what it has used."""
        with self._changed:
            self._write(path)

    def finish(self, path: str | None) -> Outcome:
        """The outcome of the request that has ended; its state is kept in ``path``."""
        with self._changed:
            session = self._running()
            assert session.ending is not None, "the request is still running"
            self._state = session.state
            if path is not None:
                resumable = session.ending.status != "diverged"
                self._write(path, tensors=resumable)
                self._at = path if resumable else None
            return session.outcome(self._now_s(), path)

    # -- for workers ----------------------------------------------------------------------------

    def ask(self, device: int, request: int) -> tuple[Lease, Parcel] | Answer | bytes:
        """The device's next lease, encoded; waits until there is one."""
        with self._changed:
            return encode_answer(self._next(device, request))

    def push(self, sent: Push | bytes) -> tuple[Lease, Parcel] | Answer | bytes:
        """Takes a gradient, or the means of a validation; returns the next lease, encoded."""
        push = decode_push(sent)
        part = Part(
            block=receive(push.block) if push.metrics is None else None,
            present=push.present,
            loss=push.loss,
            metrics=push.metrics or {},
            finite=push.finite,
            compute_s=push.compute_s,
        )
        device, request, lease = push[:3]
        del push, sent
        with self._changed:
            if request == self._request_number:
                self._running().push(lease, part, self._now_s())
            del part
            return encode_answer(self._next(device, request))

    def use_link(self, seconds: float) -> float:
        """Queues for the one link that emulated devices share; returns how long to wait."""
        with self._changed:
            now_s = self._now_s()
            self._link_free_s = max(now_s, self._link_free_s) + seconds
            return self._link_free_s - now_s

    # -- inside, all under the lock ---------------------------------------------------------------

    def _next(self, device: int, request: int) -> tuple[Lease, Parcel] | Answer:
        """Waits for a lease. Those woken here only ask: notifying again would never settle."""
        woken = False
        while request == self._request_number:
            answer = self._running().ask(device, self._now_s())
            if not woken or answer is not Answer.WAIT:
                self._changed.notify_all()
            if answer is not Answer.WAIT:
                return answer
            woken = self._changed.wait(_TICK_S)
        return Answer.STOP

    def _publish(self, block: torch.Tensor) -> Parcel:
        return publish(block)

    def _write(self, path: str, *, tensors: bool = True) -> None:
        session, now_s = self._running(), self._now_s()
        write_checkpoint(
            Path(path),
            self._parameters if tensors else None,
            session.snapshot_state(),
            session.history,
            {
                "seconds": now_s,
                "used_s": session.used_s(now_s),
                "request": session.request.to_config(),
            },
        )

    def _running(self) -> Session:
        assert self._session is not None, "no request has begun"
        return self._session

    def _batch_samples(self, batch: int) -> int:
        return batch_samples(self._num_rows, self._workload.batch_size, batch)

    def _now_s(self) -> float:
        return time.monotonic() - self._clock_zero_s

    def _clock_not_before(self, seconds: float) -> None:
        """The run's clock never goes back, and starts with the first request."""
        if not self._clock_started or self._now_s() < seconds:
            self._clock_zero_s = time.monotonic() - seconds
        self._clock_started = True
