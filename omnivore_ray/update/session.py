"""Session: one request being run, from its first lease to its outcome.

It joins the ledger (who computes what), the parameters (what an update changes), the stopping
rules and the history, and it is the single place where budgets, targets and divergence are
decided. It waits for nothing and reads no clock: the parameter server and the simulator call it,
one call at a time, and hand in the seconds of the run's clock.

When a validation metric meets the target, the run returns to exactly the state that was
validated: updates applied meanwhile are taken back, and their batches are owed again.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from omnivore_ray.strategy import Outcome
from omnivore_ray.update.history import History
from omnivore_ray.update.ledger import FIRST_LEASE_S, OVERDUE_FLOOR_S, Answer, Job, Lease, Ledger
from omnivore_ray.update.parameters import Contribution, Parameters
from omnivore_ray.update.parts import Part, Rules, Validation
from omnivore_ray.update.run_state import RunState
from omnivore_ray.update.stopping import Ending

#: A validation waits until at least this many times its own length has been trained.
_EVALUATION_SHARE = 10.0
#: The last validation is waited for this long, or ten times that once a device has begun it.
_LAST_VALIDATION_S = 60.0
#: Overdue leases are looked for this often; they are given five seconds at least.
_PATROL_EVERY_S = 0.25
#: A device that comes and goes makes many events; the outcome tells the last of them.
_EVENTS_TOLD = 8


class Session:
    """One request on one fleet.

    Args:
        rules: What ends it, and the sizes of the data.
        parameters: Already in the state to start from.
        state: Where the run stands; advanced in place.
        groups: Device numbers of each group.
        speeds: Speed of every device.
        publish: Makes one immutable copy of the live block for readers; called at most once a
            version, and only for versions that are read.
        now_s: Run clock.
        history: Rows of this request from before it was interrupted.
        used_s: Seconds it had used then.
    """

    def __init__(
        self,
        *,
        rules: Rules,
        parameters: Parameters,
        state: RunState,
        groups: Sequence[Sequence[int]],
        speeds: Sequence[float],
        publish: Callable[[torch.Tensor], Any],
        now_s: float,
        history: History | None = None,
        used_s: float = 0.0,
    ) -> None:
        request = rules.stopping.request
        budget = request.budget_updates
        self.request = request
        self.rules = rules
        self.state = state
        self.history = history or History()
        self.ending: Ending | None = None
        self.events: list[str] = []
        self._parameters = parameters
        self._publish = publish
        self._groups = groups
        self._used_s, self._rows_before = used_s, len(self.history)
        self._created_s = now_s
        self._ended_s: float | None = None
        self._started_s: float | None = None
        self._asked: set[int] = set()
        self._published: dict[int, tuple[Any, dict[str, torch.Tensor]]] = {}
        self._evaluation: Validation | None = None
        self._closing: Ending | None = None  # decided, but the last validation is still to come
        self._closed_s = now_s
        self._next_patrol_s = now_s
        self._ledger = Ledger(
            groups=groups,
            speeds=speeds,
            batch_samples=rules.batch_samples,
            validation_samples=rules.validation_samples,
            version=state.version,
            next_batch=state.next_batch,
            owed=state.owed,
            last_version=None if budget is None else state.version + budget - len(self.history),
        )
        parameters.set_strategy(request.strategy.learning_rate, request.strategy.momentum)
        if self._ledger.exhausted:  # an interrupted request that had only its end to come
            self._close(Ending("completed", f"budget of {budget} updates"), now_s)

    # -- events -------------------------------------------------------------------------------

    def ask(self, device: int, now_s: float) -> tuple[Lease, Any] | Answer:
        """The device's next lease with the published parameters of its version."""
        self.tick(now_s)
        self._asked.add(device)
        if self.ending is not None:
            return Answer.STOP
        if not self._start(now_s):
            return Answer.WAIT
        self._schedule_evaluation(now_s)
        answer = self._ledger.ask(device, now_s)
        self._hold_opened(now_s)
        if isinstance(answer, Answer):
            return answer
        return answer, self._published[answer.version][0]

    def push(self, lease_id: int, part: Part, now_s: float) -> bool:
        """Books a push; False when it is refused (late, doubled, or the request is over)."""
        self.tick(now_s)
        decision = self._ledger.push(lease_id, part, now_s)
        if decision.completed is not None:
            if decision.completed.kind == "train":
                self._apply(decision.completed, now_s)
            else:
                self._evaluated(decision.completed, now_s)
        return decision.accepted

    def completes(self, lease_id: int) -> bool:
        """Whether a push for this lease would be the last of its batch."""
        return self._ledger.completes(lease_id)

    def drop(self, device: int, reason: str, now_s: float) -> None:
        """A device is lost: its group goes on without it."""
        self.events.append(reason)
        self._ledger.drop(device, now_s)
        if not self._ledger.live_devices:
            self._end(Ending("failed", f"no device is left; the last: {reason}"), now_s)

    def tick(self, now_s: float) -> None:
        """Lets time pass: ends what is out of time, takes back what is overdue."""
        if self.ending is not None:
            return
        if self._closing is None:
            ending = self.rules.stopping.at_time(seconds=now_s, used_s=self.used_s(now_s))
            if ending is not None:
                self._close(ending, now_s)
        if now_s >= self._next_patrol_s:
            self._next_patrol_s = now_s + _PATROL_EVERY_S
            self._patrol(now_s)

    def _patrol(self, now_s: float) -> None:
        """Looks for what is overdue; too costly for every push."""
        self._lose_patience(now_s)
        for device in self._ledger.expire(now_s):
            self.events.append(
                f"device {device} was overdue at {now_s:.1f} s: others took its rows"
            )
        stalled = self._ledger.stalled(now_s)
        if stalled is not None:
            self._end(
                Ending("failed", f"device {stalled} does not answer and nobody can take its rows"),
                now_s,
            )

    def _lose_patience(self, now_s: float) -> None:
        """Ends what waits for devices that do not come."""
        if self._started_s is None and now_s - self._created_s > FIRST_LEASE_S:
            reason = f"no device asked for work within {FIRST_LEASE_S:g} s"
            self._end(Ending("failed", reason), now_s)
        # one that is out has its own deadlines; one that nobody takes would never come
        last_s = _LAST_VALIDATION_S * (1.0 if self._ledger.validating is None else 10.0)
        if self._closing is not None and now_s - self._closed_s > last_s:
            self.events.append(f"the last validation did not come within {last_s:.0f} s")
            self._end(self._closing, now_s)

    def stop(self, reason: str, now_s: float) -> None:
        """Ends the request from outside; what is in flight is refused and owed."""
        self._end(Ending("interrupted", reason), now_s)

    # -- results ------------------------------------------------------------------------------

    def used_s(self, now_s: float) -> float:
        """Seconds this request has used, interrupted stretches before it included."""
        return self._used_s + self._stretch_s(now_s)

    def _stretch_s(self, now_s: float) -> float:
        """Seconds since the first leases, until the end."""
        if self._started_s is None:
            return 0.0
        return (now_s if self._ended_s is None else self._ended_s) - self._started_s

    def snapshot_state(self) -> RunState:
        """The run's state at this moment, as a checkpoint holds it."""
        state = self.state.copy()
        state.version = self._ledger.version
        state.next_batch = self._ledger.next_batch
        state.owed = tuple(self._ledger.owed)
        return state

    def progress(self, now_s: float) -> dict[str, float]:
        """Run metrics at this moment (`omnivore_ray.workload.RUN_METRICS` and the workload's)."""
        used_s, updates = self._stretch_s(now_s), len(self.history) - self._rows_before
        samples = sum(self.history.columns["samples"][self._rows_before :])
        strategy = self.request.strategy
        return {
            "loss": self.state.smoothed.value,
            "updates": self.state.version,
            "samples": self.state.samples,
            "seconds": now_s if self._ended_s is None else self._ended_s,
            "samples_per_s": samples / used_s if used_s > 0 else math.nan,
            "seconds_per_update": used_s / updates if updates else math.nan,
            "staleness_mean": self.history.mean("staleness"),
            "bytes_per_update": self.history.mean("bytes"),
            "groups": strategy.groups,
            "learning_rate": strategy.learning_rate,
            "momentum": strategy.momentum,
            **self.state.metrics,
        }

    def outcome(self, now_s: float, checkpoint_path: str | None) -> Outcome:
        """What became of the request."""
        ending = self.ending or Ending("interrupted", "not finished")
        events = self.events[-_EVENTS_TOLD:]
        if len(self.events) > len(events):
            events.insert(0, f"{len(self.events) - len(events)} events before")
        reason = "; ".join([ending.reason, *events])
        # seconds of a request that was interrupted count on from what it had used
        start_s = (now_s if self._started_s is None else self._started_s) - self._used_s
        return Outcome(
            status=ending.status,
            updates=len(self.history),
            samples=sum(self.history.columns["samples"]),
            seconds=self.used_s(now_s),
            loss=self.state.smoothed.value,
            curve=self.history.curve(start_s),
            metrics=dict(self.state.metrics),
            checkpoint_path=None if ending.status == "diverged" else checkpoint_path,
            reason=reason,
        )

    # -- inside -------------------------------------------------------------------------------

    def _start(self, now_s: float) -> bool:
        """Starts the request's clock once every member is there, or has been waited for."""
        if self._started_s is None:
            everybody = self._asked.issuperset(self._ledger.live_devices)
            if not everybody and now_s - self._created_s < OVERDUE_FLOOR_S:
                return False
            for device in set(self._ledger.live_devices) - self._asked:
                self._ledger.mark_absent(device)
            self._started_s = now_s
        return True

    def _schedule_evaluation(self, now_s: float) -> None:
        state, ledger = self.state, self._ledger
        if not self.rules.validation_samples or self.request.kind != "train":
            return
        if self._evaluation is not None or ledger.evaluation_wanted:
            return
        pause_s = max(self.rules.evaluate_every_s, _EVALUATION_SHARE * state.evaluation_took_s)
        since_s = state.evaluated_s if state.evaluated_s is not None else self._started_s
        assert since_s is not None
        ledger.evaluation_wanted = now_s - since_s >= pause_s

    def _apply(self, job: Job, now_s: float) -> None:
        parts = job.parts()
        loss = sum(lease.weight * part.loss for lease, part in parts)
        if not math.isfinite(loss) or not all(part.finite for _, part in parts):
            self._ledger.abandon(job)
            what = "the loss is" if not math.isfinite(loss) else "a gradient is"
            self._end(self.rules.stopping.not_finite(what, self._ledger.version), now_s)
            return
        contributions = [
            Contribution(block=part.block, present=part.present, weight=lease.weight)
            for lease, part in parts
        ]
        self._parameters.update(contributions, self._published[job.version][1])
        staleness = self._ledger.applied(job)
        state, strategy = self.state, self.request.strategy
        state.version = self._ledger.version
        state.samples += job.total
        state.smoothed.add(loss)
        self.history.append(
            version=state.version,
            group=job.group,
            version_read=job.version,
            staleness=staleness,
            learning_rate=strategy.learning_rate,
            momentum=strategy.momentum,
            samples=job.total,
            loss=loss,
            time_s=now_s,
            compute_s=max(part.compute_s for _, part in parts),
            bytes=2 * len(parts) * self._parameters.layout.nbytes,
        )
        ending = self.rules.stopping.after_update(
            loss=loss,
            smoothed=state.smoothed,
            updates=state.version,
            samples=state.samples,
            seconds=now_s,
        )
        if ending is not None and ending.status == "diverged":
            self._end(ending, now_s)
        elif ending is not None:
            self._close(ending, now_s)
        elif self._ledger.exhausted:
            budget = self.request.budget_updates
            self._close(Ending("completed", f"budget of {budget} updates"), now_s)

    def _close(self, ending: Ending, now_s: float) -> None:
        """Training is over; the request ends once its last version is validated."""
        self._ledger.close_training()
        if not self.rules.validation_samples or self.request.kind != "train":
            self._end(ending, now_s)
            return
        self._closing, self._closed_s = ending, now_s
        if self._ledger.validating is None:
            self._ledger.evaluation_wanted = True

    def _evaluated(self, job: Job, now_s: float) -> None:
        assert self._evaluation is not None
        evaluation, self._evaluation = self._evaluation, None
        validated = evaluation.state
        names = job.done[0][1].metrics
        metrics = {
            name: sum(lease.weight * part.metrics[name] for lease, part in job.parts())
            for name in names
        }
        for state in (self.state, validated):
            state.metrics = dict(metrics)
            state.evaluated_s = now_s
            state.evaluation_took_s = now_s - evaluation.begun_s
        ending = self.rules.stopping.judge(metrics)
        if ending is not None:
            self._return_to(evaluation)
            self._end(ending, now_s)
        elif self._closing is not None:
            if job.version == self._ledger.version:
                self._end(self._closing, now_s)
            else:
                self._ledger.evaluation_wanted = True

    def _return_to(self, evaluation: Validation) -> None:
        """Takes back the updates applied while the validation ran."""
        validated = evaluation.state
        taken_back = self.state.version - validated.version
        if taken_back:
            self.events.append(f"{taken_back} updates applied during the validation taken back")
            self._parameters.restore(evaluation.snapshot)
            self.history.truncate(validated.version)
        self.state = validated
        self._ledger = self._closed_ledger(validated)

    def _closed_ledger(self, state: RunState) -> Ledger:
        ledger = Ledger(
            groups=self._groups,
            speeds=self._ledger.speeds,
            batch_samples=self.rules.batch_samples,
            version=state.version,
            next_batch=state.next_batch,
            owed=state.owed,
        )
        ledger.stopped = True
        return ledger

    def _end(self, ending: Ending, now_s: float) -> None:
        if self.ending is None:
            self.ending = ending
            self._ended_s = now_s
            self._ledger.stopped = True
            self.state = self.snapshot_state()
            self._published.clear()

    def _hold_opened(self, now_s: float) -> None:
        """Keeps what a batch just opened needs: its version, published, and a validation's state.

        Forgets the versions that no open batch reads any more.
        """
        needed, version = self._ledger.versions_read(), self._ledger.version
        for old in set(self._published) - needed:
            del self._published[old]
        if version in needed and version not in self._published:
            self._published[version] = (
                self._publish(self._parameters.block),
                self._parameters.buffers(),
            )
        if self._ledger.validating == version and (
            self._evaluation is None or self._evaluation.state.version != version
        ):
            self._evaluation = Validation(
                begun_s=now_s, snapshot=self._parameters.snapshot(), state=self.snapshot_state()
            )
