"""A fleet in one process: the real session and the real device layer, on a made-up clock."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from omnivore_ray.data.datasets import as_split
from omnivore_ray.data.sampler import batch_samples
from omnivore_ray.device.share import ShareRunner
from omnivore_ray.device.step import TorchTrainer
from omnivore_ray.strategy import Request, Strategy
from omnivore_ray.update.groups import deal_devices
from omnivore_ray.update.ledger import Answer
from omnivore_ray.update.parameters import Parameters
from omnivore_ray.update.parts import Part, Rules
from omnivore_ray.update.run_state import RunState
from omnivore_ray.update.session import Session
from omnivore_ray.update.stopping import Stopping
from omnivore_ray.workload import Target, Workload


class InProcessFleet:
    """Runs requests by events: each device's step takes its samples over its speed, or as told."""

    def __init__(
        self,
        workload: Workload,
        speeds: Sequence[float] = (1.0,),
        *,
        seed: int = 0,
        target: Target | None = None,
        time_limit_s: float | None = None,
        evaluate_every_s: float = 1e9,
        step_s: Callable[[int, int], float] | None = None,
    ) -> None:
        self.workload, self.speeds, self.seed = workload, list(speeds), seed
        self.target, self.time_limit_s = target, time_limit_s
        self.evaluate_every_s = evaluate_every_s
        self.step_s = step_s or (lambda device, samples: samples / self.speeds[device])
        self.split = as_split(workload.data)
        self.model = workload.model()
        self.parameters = Parameters(self.model, workload.optimizer)
        self.state = RunState()
        self.now_s = 0.0
        self._runners = [self._runner(device) for device in range(len(self.speeds))]

    def session(self, request: Request, **options: Any) -> Session:
        validation = self.split.validation
        return Session(
            rules=Rules(
                batch_samples=lambda batch: batch_samples(
                    len(self.split.train), self.workload.batch_size, batch
                ),
                validation_samples=0 if validation is None else len(validation),
                evaluate_every_s=self.evaluate_every_s,
                stopping=Stopping(
                    request=request, target=self.target, time_limit_s=self.time_limit_s
                ),
            ),
            parameters=self.parameters,
            state=self.state,
            groups=deal_devices(self.speeds, request.strategy.groups),
            speeds=self.speeds,
            publish=lambda block: block.clone(),
            now_s=self.now_s,
            **options,
        )

    def run(
        self,
        updates: int | None = None,
        *,
        groups: int = 1,
        learning_rate: float = 0.05,
        momentum: float = 0.0,
        kind: str = "train",
        on_push: Callable[[Session, int, int, float], None] | None = None,
        **options: Any,
    ) -> Session:
        """Runs one request to its end; ``on_push`` sees (session, device, lease id, seconds)."""
        strategy = Strategy(groups=groups, learning_rate=learning_rate, momentum=momentum)
        request = Request(kind=kind, strategy=strategy, budget_updates=updates)
        session = self.session(request, **options)
        waiting = set(range(len(self.speeds)))
        working: list[tuple[float, int, int, Part]] = []
        for _ in range(200_000):
            for device in sorted(waiting):
                answer = session.ask(device, self.now_s)
                if answer is not Answer.WAIT:
                    waiting.discard(device)
                if not isinstance(answer, Answer):
                    lease, block = answer
                    due_s = self.now_s + self.step_s(device, lease.samples)
                    heapq.heappush(
                        working, (due_s, device, lease.id, self._compute(device, lease, block))
                    )
            if session.ending is not None:
                self.state = session.state
                return session
            if not working:
                if not waiting:
                    raise AssertionError("nobody works and nobody waits, but it has not ended")
                self.now_s += 1.0
                continue
            self.now_s, device, lease_id, part = heapq.heappop(working)
            if on_push is not None:
                on_push(session, device, lease_id, self.now_s)
            session.push(lease_id, part, self.now_s)
            waiting.add(device)
        raise AssertionError("the request did not end")

    def _runner(self, device: int) -> ShareRunner:
        module = self.workload.model()
        return ShareRunner(
            name=f"device-{device}",
            trainer=TorchTrainer(module, self.workload),
            train=self.split.train,
            validation=self.split.validation,
            batch_size=self.workload.batch_size,
            seed=self.seed,
        )

    def _compute(self, device: int, lease: Any, block: Any) -> Part:
        layout, runner = self.parameters.layout, self._runners[device]
        state = layout.views(block.clone())
        if lease.kind == "evaluate":
            metrics = runner.evaluate(start=lease.start, stop=lease.stop, state=state)
            return Part(metrics=metrics)
        out = layout.zeros()
        share = runner.gradient(
            batch=lease.batch, start=lease.start, stop=lease.stop, weight=lease.weight,
            state=state, out=layout.views(out),
        )  # fmt: skip
        return Part(block=out, present=share.present, loss=share.loss, finite=share.finite)


@pytest.fixture
def fleet() -> type[InProcessFleet]:
    return InProcessFleet


@pytest.fixture
def regression() -> Callable[..., Workload]:
    """A small regression workload; ``dtype`` and other fields as wanted."""

    def make(model: Callable[[], Any], dtype: str = "float64", rows: int = 100, **fields: Any):
        import torch.nn.functional as F

        rng = np.random.default_rng(0)
        inputs = rng.standard_normal((rows, 6)).astype(dtype)
        targets = (inputs @ rng.standard_normal((6, 2))).astype(dtype)
        base = Workload(model=model, data=(inputs, targets), loss=F.mse_loss, batch_size=32)
        return replace(base, **fields)

    return make
