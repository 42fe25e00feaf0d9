"""Leases, batches and exactly-once pushes: a pure state machine, event in, decision out.

The ledger knows which rows of which batch are out with which device, and nothing of gradients,
parameters or the wall clock: the times it sees are handed in. Its invariants:

* every batch number is applied exactly once, or is still open or owed;
* a push counts once or is refused, never twice, however late or doubled it arrives;
* all members of a group compute one batch at one version.

On failure: the rows of a dropped or overdue device are leased again to the members of its group
that are there; a group with nobody left hands its batch on, and another group takes it. A late
push is refused, but what it took is remembered: a device that turns slow is late once, not always.
"""

from __future__ import annotations

import enum
import itertools
import statistics
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from omnivore_ray.update.groups import deal_rows

#: A lease is overdue after this many times what its device usually takes, and at least ...
OVERDUE_FACTOR = 5.0
OVERDUE_FLOOR_S = 5.0
#: A device that has never answered (start-up, compilation) is given this long.
FIRST_LEASE_S = 120.0
#: With nobody to take over, the run is stalled after this many times the deadline.
STALL_FACTOR = 12.0


class Answer(enum.Enum):
    """What a device that asks is told when there is no lease for it."""

    WAIT = "wait"
    STOP = "stop"


class Lease(NamedTuple):
    """Rows of one batch, given to one device, to be computed at one version.

    A named tuple, because it travels with every update and pickles three times as fast.

    Attributes:
        id: Unique in the run; a push is tagged with it.
        kind: "train" or "evaluate" (rows of the validation data).
        device: Device number.
        group: Group number.
        batch: Batch number over all epochs (train) or 0 (evaluate).
        start: First row of the batch that is meant.
        stop: One past the last.
        total: Rows of the whole batch.
        version: Version of the parameters to compute at.
    """

    id: int
    kind: Literal["train", "evaluate"]
    device: int
    group: int
    batch: int
    start: int
    stop: int
    total: int
    version: int

    @property
    def samples(self) -> int:
        """Rows of this lease."""
        return self.stop - self.start

    @property
    def weight(self) -> float:
        """Share of the batch; 1.0 exactly when the device has it all."""
        return self.samples / self.total


@dataclass(slots=True)
class Job:
    """One batch being computed by one group."""

    kind: Literal["train", "evaluate"]
    group: int
    batch: int
    total: int
    version: int
    waiting: list[Lease] = field(default_factory=list)  # dealt, not yet handed over
    out: dict[int, tuple[Lease, float]] = field(default_factory=dict)  # handed over, and when
    done: list[tuple[Lease, Any]] = field(default_factory=list)  # pushed, with what was pushed
    opened_s: float = 0.0

    def parts(self) -> list[tuple[Lease, Any]]:
        """What was pushed, in the order of the rows, whoever came first."""
        return sorted(self.done, key=lambda part: part[0].start)


@dataclass(frozen=True, slots=True)
class Push:
    """Decision on a push: was it counted, and did it complete its batch?"""

    accepted: bool
    completed: Job | None = None


class Ledger:
    """The books of one request.

    Args:
        groups: Device numbers of each group.
        speeds: Speed of every device, indexed by device number.
        batch_samples: Batch number to its number of rows.
        validation_samples: Rows of the validation data.
        version: Updates applied before.
        next_batch: First batch number never opened.
        owed: Batch numbers opened before but never applied; they go first.
        last_version: Open no batch that would go past this version; None for no bound.
    """

    def __init__(
        self,
        *,
        groups: Sequence[Sequence[int]],
        speeds: Sequence[float],
        batch_samples: Callable[[int], int],
        validation_samples: int = 0,
        version: int = 0,
        next_batch: int = 0,
        owed: Sequence[int] = (),
        last_version: int | None = None,
    ) -> None:
        self.groups = [list(members) for members in groups]
        self.speeds = list(speeds)
        self.version = version
        self.last_version = last_version
        self.next_batch = next_batch
        self.stopped = False
        self.evaluation_wanted = False
        self._batch_samples = batch_samples
        self._validation_samples = validation_samples
        self._owed = deque(owed)
        self._jobs: dict[int, Job] = {}
        self._group_of = {d: g for g, members in enumerate(self.groups) for d in members}
        self._absent: set[int] = set()  # overdue; back as soon as they ask
        self._dropped: set[int] = set()
        self._ids: Iterator[int] = itertools.count()
        self._seconds_per_sample: dict[tuple[int, str], deque[float]] = {
            (device, kind): deque(maxlen=15)
            for device in self._group_of
            for kind in ("train", "evaluate")
        }
        self._late: dict[int, tuple[Lease, float]] = {}  # of each device: last lease taken back

    # -- what a device does -------------------------------------------------------------------

    def ask(self, device: int, now_s: float) -> Lease | Answer:
        """The device's next lease, or WAIT (ask again after any event), or STOP."""
        if self.stopped or device in self._dropped:
            return Answer.STOP
        self._absent.discard(device)
        group = self._group_of[device]
        if group not in self._jobs:
            self._open(group, now_s)
        job = self._jobs.get(group)
        if job is None:
            return Answer.WAIT
        for index, lease in enumerate(job.waiting):
            if lease.device == device:
                job.out[lease.id] = (lease, now_s)
                return job.waiting.pop(index)
        return Answer.WAIT

    def push(self, lease_id: int, payload: Any, now_s: float) -> Push:
        """Books what a device computed for a lease; refuses what is late, doubled or unknown."""
        for job in self._jobs.values():
            if lease_id in job.out:
                break
        else:
            self._learn_from_late(lease_id, now_s)
            return Push(accepted=False)
        if self.stopped:
            return Push(accepted=False)
        lease, handed_s = job.out.pop(lease_id)
        self._seconds_of(lease).append((now_s - handed_s) / lease.samples)
        job.done.append((lease, payload))
        if job.waiting or job.out:
            return Push(accepted=True)
        del self._jobs[job.group]
        return Push(accepted=True, completed=job)

    def completes(self, lease_id: int) -> bool:
        """Whether a push for this lease would be the last of its batch."""
        return any(
            lease_id in job.out and len(job.out) == 1 and not job.waiting
            for job in self._jobs.values()
        )

    # -- what happens to devices --------------------------------------------------------------

    def drop(self, device: int, now_s: float) -> None:
        """A device is lost for good: its rows go to those who are left."""
        if device in self._group_of and device not in self._dropped:
            self._dropped.add(device)
            self._take_back(device, now_s)

    def expire(self, now_s: float) -> list[int]:
        """Takes back what is overdue, where somebody else can do it.

        Returns:
            The devices whose rows were taken back; a late push of theirs will be refused.
        """
        late = []
        for job in list(self._jobs.values()):
            for device in self._overdue(job, now_s, 1.0):
                if self._substitutes(device):
                    self._late.update(
                        (device, out) for out in job.out.values() if out[0].device == device
                    )
                    self._absent.add(device)
                    self._take_back(device, now_s)
                    late.append(device)
        return late

    def stalled(self, now_s: float) -> int | None:
        """A device that is far overdue with nobody to take its rows, or None."""
        for job in self._jobs.values():
            for device in self._overdue(job, now_s, STALL_FACTOR):
                return device
        return None

    def mark_absent(self, device: int) -> None:
        """The device is not there now: deal it nothing until it asks."""
        self._absent.add(device)

    # -- what the session asks and decides ----------------------------------------------------

    def close_training(self) -> None:
        """No more updates: what is out is refused when it comes, and owed."""
        for group, job in list(self._jobs.items()):
            if job.kind == "train":
                self._owed.append(job.batch)
                del self._jobs[group]
        self.last_version = self.version

    def applied(self, job: Job) -> int:
        """A completed train job became an update; returns its staleness."""
        staleness = self.version - job.version
        self.version += 1
        return staleness

    def abandon(self, job: Job) -> None:
        """A completed train job was not applied: its batch is owed."""
        self._owed.append(job.batch)

    @property
    def exhausted(self) -> bool:
        """Whether every update up to `last_version` has been applied."""
        return self.last_version is not None and self.version >= self.last_version

    @property
    def live_devices(self) -> list[int]:
        """Devices that were not dropped."""
        return sorted(set(self._group_of) - self._dropped)

    @property
    def owed(self) -> list[int]:
        """Batches opened but never applied, those still open included, in rising order."""
        still_open = [job.batch for job in self._jobs.values() if job.kind == "train"]
        return sorted([*self._owed, *still_open])

    def versions_read(self) -> set[int]:
        """Versions at which a batch is being computed."""
        return {job.version for job in self._jobs.values()}

    @property
    def validating(self) -> int | None:
        """The version that is being validated, or None."""
        return next((j.version for j in self._jobs.values() if j.kind == "evaluate"), None)

    @property
    def pending(self) -> int:
        """Pushes held until the rest of their batch is in; at most one per live lease."""
        return sum(len(job.done) for job in self._jobs.values())

    def seconds_per_sample(self) -> dict[int, float]:
        """Median over the latest train leases of each device that has finished one."""
        return {
            device: statistics.median(seconds)
            for (device, kind), seconds in self._seconds_per_sample.items()
            if seconds and kind == "train"
        }

    # -- inside ---------------------------------------------------------------------------------

    def _open(self, group: int, now_s: float) -> None:
        """Gives the group its next batch, if there is one to give."""
        kind: Literal["train", "evaluate"] = "train"
        if self.evaluation_wanted:
            self.evaluation_wanted = False
            kind, batch, total = "evaluate", 0, self._validation_samples
        else:
            training = sum(job.kind == "train" for job in self._jobs.values())
            if self.last_version is not None and self.version + training >= self.last_version:
                return
            if self._owed:
                batch = self._owed.popleft()
            else:
                batch = self.next_batch
                self.next_batch += 1
            total = self._batch_samples(batch)
        job = Job(kind, group, batch, total, self.version, opened_s=now_s)
        self._jobs[group] = job
        self._deal(job, 0, total)

    def _deal(self, job: Job, start: int, stop: int) -> None:
        for device, low, high in deal_rows(start, stop, self._present(job.group), self.speeds):
            job.waiting.append(
                Lease(
                    id=next(self._ids),
                    kind=job.kind,
                    device=device,
                    group=job.group,
                    batch=job.batch,
                    start=low,
                    stop=high,
                    total=job.total,
                    version=job.version,
                )
            )

    def _present(self, group: int) -> list[int]:
        return [d for d in self.groups[group] if d not in self._dropped | self._absent]

    def _take_back(self, device: int, now_s: float) -> None:
        """Cancels the device's leases and deals their rows again."""
        job = self._jobs.get(self._group_of[device])
        if job is None:
            return
        mine = [lease for lease in job.waiting if lease.device == device]
        mine += [lease for lease, _ in job.out.values() if lease.device == device]
        if self._present(job.group):
            job.waiting = [lease for lease in job.waiting if lease.device != device]
            job.out = {i: out for i, out in job.out.items() if out[0].device != device}
            for lease in mine:
                self._deal(job, lease.start, lease.stop)
            job.opened_s = now_s
        else:  # the pushed parts of it are forgotten: the whole batch is done again elsewhere
            del self._jobs[job.group]
            if job.kind == "train":
                self._owed.append(job.batch)
            else:
                self.evaluation_wanted = True

    def _substitutes(self, device: int) -> bool:
        """Whether anybody else could compute this device's rows."""
        return bool(set(self._group_of) - self._dropped - self._absent - {device})

    def _overdue(self, job: Job, now_s: float, factor: float) -> list[int]:
        """Devices of the job whose oldest lease is past ``factor`` deadlines."""
        since: dict[int, tuple[Lease, float]] = {}
        for lease, handed_s in job.out.values():
            since[lease.device] = (lease, handed_s)
        for lease in job.waiting:
            since.setdefault(lease.device, (lease, job.opened_s))
        return [
            device
            for device, (lease, start_s) in since.items()
            if now_s - start_s > factor * self._deadline_s(lease)
        ]

    def _seconds_of(self, lease: Lease) -> deque[float]:
        return self._seconds_per_sample[lease.device, lease.kind]

    def _learn_from_late(self, lease_id: int, now_s: float) -> None:
        """Forgets how fast the device was: else a slow one would be overdue for ever."""
        for device, (lease, handed_s) in list(self._late.items()):
            if lease.id == lease_id:
                del self._late[device]
                self._seconds_of(lease).clear()
                self._seconds_of(lease).append((now_s - handed_s) / lease.samples)

    def _deadline_s(self, lease: Lease) -> float:
        seconds = self._seconds_of(lease) or self._seconds_per_sample[lease.device, "train"]
        if not seconds:
            return FIRST_LEASE_S
        return max(OVERDUE_FLOOR_S, OVERDUE_FACTOR * statistics.median(seconds) * lease.samples)
