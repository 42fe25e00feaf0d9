"""VirtualFleet: carries out requests on a virtual cluster, one event after the other.

The session is the parameter server's own, so leases, staleness, validations, divergence, budgets
and what happens to late and lost devices are decided as on real devices. Here is only when things
happen. Gradients are computed when they are pushed, at the version their lease names; devices
that read one version share one copy of it.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import Any, NamedTuple

import torch

from omnivore_ray.data.datasets import as_split
from omnivore_ray.data.sampler import batch_samples
from omnivore_ray.simulate.clock import Pipeline
from omnivore_ray.simulate.cluster import VirtualCluster
from omnivore_ray.simulate.service_times import Factors
from omnivore_ray.simulate.shares import Shares
from omnivore_ray.strategy import Outcome, Request
from omnivore_ray.update.groups import deal_devices
from omnivore_ray.update.ledger import Answer, Lease
from omnivore_ray.update.parameters import Parameters, Snapshot
from omnivore_ray.update.parts import Rules
from omnivore_ray.update.run_state import RunState
from omnivore_ray.update.session import Session
from omnivore_ray.update.stopping import Stopping
from omnivore_ray.workload import Target, Workload

#: A waiting device looks again this often, as it does at a real server.
_WAKE_S = 0.5
#: States of the latest stretches that are kept; those of probes go when a stretch has gone well.
_KEPT_STRETCHES = 3


class _Event(NamedTuple):
    """Something that will happen; of events at one time the lowest rank, then tie, comes first.

    A step's end (rank 2) ties by device, as in a timing run; what arrives at the servers (rank 1)
    does so in order of arrival; failures come before all.
    """

    at_s: float
    rank: int
    tie: int
    happen: Callable[[float], None]


@dataclass(frozen=True, kw_only=True, slots=True)
class Kept:
    """A state to resume from.

    Attributes:
        kind: Kind of the request that ended in it.
        snapshot: Parameters and velocity.
        state: Where the run stood.
    """

    kind: str
    snapshot: Snapshot
    state: RunState


class VirtualFleet:
    """The devices and servers of one run.

    Args:
        workload: What to train.
        cluster: Whose time it is.
        seed: Of the model, the row order, dropout and the step times.
        target: The run's target, or None.
        time_limit_s: The run's end on the virtual clock, or None.
        evaluate_every_s: Virtual seconds between validations.
        watch: Called with the session and the time after each update; None for nobody.

    Raises:
        ValueError: The model or its data cannot be supported, or the cluster has a head server.
    """

    def __init__(
        self,
        workload: Workload,
        cluster: VirtualCluster,
        *,
        seed: int = 0,
        target: Target | None = None,
        time_limit_s: float | None = None,
        evaluate_every_s: float = 2.0,
        watch: Callable[[Session, float], None] | None = None,
    ) -> None:
        if cluster.head is not None:
            raise ValueError(
                f"VirtualCluster.head={cluster.head!r}: gradients with a head server cannot be "
                "simulated yet; give head=None (everything stale), or timing_only=True"
            )
        self.cluster = cluster
        self.now_s = 0.0
        self.state = RunState()
        self._workload = workload
        self._target, self._time_limit_s = target, time_limit_s
        self._evaluate_every_s = evaluate_every_s
        self._watch = watch
        split = as_split(workload.data)
        self._num_rows = len(split.train)
        self._num_validation_rows = len(split.validation or ()) if workload.metrics else 0
        torch.manual_seed(seed)
        self.parameters = Parameters(workload.model(), workload.optimizer)
        layout = self.parameters.layout
        self._shares = Shares(
            workload=workload, split=split, module=workload.model(), layout=layout, seed=seed
        )
        self._factors = Factors([device.service_times for device in cluster.devices], seed)
        self._transfer_s = cluster.transfer_s(layout.nbytes)
        self._kept: dict[str, Kept] = {}

    def run(self, request: Request, name: str) -> tuple[Outcome, Session]:
        """Carries out a request.

        Args:
            request: ``resume_from`` is None or the name of an earlier request.
            name: To resume from its final state by.

        Returns:
            What became of it, and its session, which has ended.

        Raises:
            ValueError: This cluster cannot run it.
            OmnivoreError: The user's code failed; its exception is the cause.
        """
        self.cluster.check(request.strategy, self._workload.batch_size)
        self._return_to(request.resume_from)
        groups = deal_devices(self.cluster.speeds, request.strategy.groups)
        session = self._session(request, groups)
        self.now_s = _Play(self, session, groups).until_ended()
        self.state = session.state
        outcome = session.outcome(self.now_s, name)
        self._keep(name, request, outcome)
        return outcome, session

    # -- inside -----------------------------------------------------------------------------------

    def _session(self, request: Request, groups: list[list[int]]) -> Session:
        layout = self.parameters.layout
        return Session(
            rules=Rules(
                batch_samples=self._batch_samples,
                validation_samples=self._num_validation_rows,
                evaluate_every_s=self._evaluate_every_s,
                stopping=Stopping(
                    request=request, target=self._target, time_limit_s=self._time_limit_s
                ),
            ),
            parameters=self.parameters,
            state=self.state,
            groups=groups,
            speeds=self.cluster.speeds,
            publish=lambda block: layout.views(block.clone()),
            now_s=self.now_s,
        )

    def _batch_samples(self, batch: int) -> int:
        return batch_samples(self._num_rows, self._workload.batch_size, batch)

    def _return_to(self, name: str | None) -> None:
        if name is None:
            self.parameters.restore(self.parameters.initial)
            self.state = RunState()
        else:
            kept = self._kept.pop(name)
            self._kept[name] = kept  # used last
            self.parameters.restore(kept.snapshot)
            self.state = kept.state.copy()

    def kept(self, name: str) -> Kept:
        """The state that a request ended in; the latest are always there."""
        return self._kept[name]

    def _keep(self, name: str, request: Request, outcome: Outcome) -> None:
        """Keeps a state worth going on from, and forgets what a search has trained past."""
        if outcome.checkpoint_path is not None:
            snapshot = self.parameters.snapshot()
            self._kept[name] = Kept(kind=request.kind, snapshot=snapshot, state=self.state.copy())
        if request.kind == "train" and outcome.ok:
            stretches = [name for name, kept in self._kept.items() if kept.kind == "train"]
            self._kept = {name: self._kept[name] for name in stretches[-_KEPT_STRETCHES:]}


class _Play:
    """The events of one request."""

    def __init__(self, fleet: VirtualFleet, session: Session, groups: list[list[int]]) -> None:
        self._session = session
        self._shares, self._factors = fleet._shares, fleet._factors
        self._devices = fleet.cluster.devices
        self._transfer_s = fleet._transfer_s
        self._pipeline = Pipeline(fleet.cluster)
        self._watch = fleet._watch
        self._now_s = fleet.now_s
        self._next_wake_s = self._now_s + _WAKE_S
        self._order = itertools.count()
        self._due: list[_Event] = []
        self._waiting: set[int] = set()
        self._lost: set[int] = set()
        self._heard = 0  # of the session's events
        self._mates = {device: members for members in groups for device in members}

    def until_ended(self) -> float:
        """Lets everything happen; returns when the request ended."""
        session = self._session
        for number, device in enumerate(self._devices):
            if device.fails_at_s is not None:
                self._at(max(device.fails_at_s, self._now_s), 0, number, self._failure(number))
        while self._due and self._due[0].at_s <= self._now_s:  # lost before it began
            heappop(self._due).happen(self._now_s)
        self._ask([d for d in range(len(self._devices)) if d not in self._lost])
        self._ask(sorted(self._waiting))  # the last of them has started the clock
        while session.ending is None:
            next_s = self._due[0].at_s if self._due else math.inf
            if next_s > self._next_wake_s:
                self._wake(self._next_wake_s)
            else:
                event = heappop(self._due)
                self._now_s = event.at_s
                event.happen(event.at_s)
            if len(session.events) > self._heard:
                self._heard = len(session.events)
                self._ask(sorted(self._waiting))
        return self._now_s

    def _at(self, at_s: float, rank: int, tie: int, happen: Callable[[float], None]) -> None:
        heappush(self._due, _Event(at_s, rank, tie, happen))

    def _wake(self, now_s: float) -> None:
        """Time passes, and those who wait look for work."""
        self._now_s, self._next_wake_s = now_s, now_s + _WAKE_S
        self._session.tick(now_s)
        self._ask(sorted(self._waiting))

    def _ask(self, devices: Any) -> None:
        for device in devices:
            answer = self._session.ask(device, self._now_s)
            if isinstance(answer, Answer):
                self._waiting.add(device)
                continue
            self._waiting.discard(device)
            lease, state = answer
            step_s = lease.samples / self._devices[device].samples_per_s
            step_s *= self._factors.next(device)
            self._at(self._now_s + step_s, 2, device, self._step(lease, state, step_s))

    def _failure(self, device: int) -> Callable[[float], None]:
        def fail(now_s: float) -> None:
            self._lost.add(device)
            self._waiting.discard(device)
            self._session.drop(device, f"virtual device {device} failed at {now_s:g} s", now_s)

        return fail

    def _step(
        self, lease: Lease, state: Mapping[str, torch.Tensor], compute_s: float
    ) -> Callable[[float], None]:
        """A device's step: computed, through the link, perhaps through the servers, pushed."""

        def computed(now_s: float) -> None:
            if lease.device in self._lost:
                return
            transfers = 2 if lease.kind == "train" else 1  # a validation only reads
            through_s = self._pipeline.through_link(now_s, transfers * self._transfer_s)
            self._at(through_s, 1, next(self._order), arrived)

        def arrived(now_s: float) -> None:
            if lease.kind == "train" and self._session.completes(lease.id):
                applied_s = self._pipeline.through_servers(now_s)
                self._at(applied_s, 1, next(self._order), pushed)
            else:
                pushed(now_s)

        def pushed(now_s: float) -> None:
            if lease.device in self._lost:
                return
            completes = self._session.completes(lease.id)
            asking = self._mates[lease.device] if completes else [lease.device]
            part = self._shares.part(lease, state, completes=completes, compute_s=compute_s)
            self._session.push(lease.id, part, now_s)
            self._waiting.add(lease.device)
            if self._watch is not None and completes:
                self._watch(self._session, now_s)
            self._ask([d for d in asking if d in self._waiting])

        return computed
