"""The ledger's promises: each batch once, each push once, one version a group, nobody forgotten."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from omnivore_ray.update.groups import deal_devices
from omnivore_ray.update.ledger import (
    FIRST_LEASE_S,
    OVERDUE_FACTOR,
    OVERDUE_FLOOR_S,
    STALL_FACTOR,
    Answer,
    Lease,
    Ledger,
)

#: Rows of batch b; the first ones are smaller than most groups.
SIZES = (1, 5, 8, 2, 3)


def batch_samples(batch: int) -> int:
    return SIZES[batch % len(SIZES)]


def ledger_of(*groups: list[int], **options) -> Ledger:
    devices = sum(map(len, groups))
    options.setdefault("batch_samples", lambda batch: 6)
    return Ledger(groups=groups, speeds=[1.0] * devices, **options)


class LedgerMachine(RuleBasedStateMachine):
    """Asks, pushes, losses and time in any order; then everybody left must finish."""

    @initialize(
        speeds=st.lists(st.sampled_from([1.0, 2.0, 5.0]), min_size=1, max_size=5),
        data=st.data(),
        budget=st.one_of(st.none(), st.integers(0, 8)),
        owed=st.lists(st.integers(0, 9), unique=True, max_size=3),
        version=st.integers(0, 5),
    )
    def begin(self, speeds, data, budget, owed, version):
        groups = data.draw(st.integers(1, len(speeds)))
        self.first_version = version
        self.last_version = None if budget is None else version + budget
        self.first_owed, self.first_batch = set(owed), 10
        self.ledger = Ledger(
            groups=deal_devices(speeds, groups),
            speeds=speeds,
            batch_samples=batch_samples,
            validation_samples=7,
            version=version,
            next_batch=10,
            owed=owed,
            last_version=self.last_version,
        )
        self.devices = range(len(speeds))
        self.now_s = 0.0
        self.leases: list[Lease] = []
        self.accepted: Counter[int] = Counter()
        self.in_hand: dict[int, list[Lease]] = {device: [] for device in self.devices}
        self.applied: list[int] = []
        self.evaluated: list[int] = []
        self.dropped: set[int] = set()
        self.closed = False

    # -- what may happen --------------------------------------------------------------------------

    @rule(number=st.integers(0, 4))
    def ask(self, number):
        device = number % len(self.devices)
        answer = self.ledger.ask(device, self.now_s)
        if isinstance(answer, Lease):
            assert answer.device == device
            assert answer.id not in {lease.id for lease in self.leases}
            assert 0 <= answer.start < answer.stop <= answer.total
            assert answer.version in self.ledger.versions_read()
            self.leases.append(answer)
            self.in_hand[device].append(answer)
        if device in self.dropped or self.ledger.stopped:
            assert answer is Answer.STOP

    @precondition(lambda self: self.leases)
    @rule(data=st.data(), apply=st.booleans())
    def push_any_lease_ever_given_even_twice(self, data, apply):
        self.push(data.draw(st.sampled_from(self.leases)), apply)

    @precondition(lambda self: any(self.in_hand.values()))
    @rule(data=st.data())
    def push_what_a_device_has_in_hand(self, data):
        in_hand = [lease for leases in self.in_hand.values() for lease in leases]
        self.push(data.draw(st.sampled_from(in_hand)), True)

    @rule()
    def push_an_unknown_lease(self):
        assert not self.ledger.push(10**9, None, self.now_s).accepted

    @rule(number=st.integers(0, 4))
    def drop(self, number):
        device = number % len(self.devices)
        self.dropped.add(device)
        self.ledger.drop(device, self.now_s)

    @rule(seconds=st.sampled_from([0.01, 1.0, 6.0, FIRST_LEASE_S + 1.0]))
    def let_time_pass(self, seconds):
        self.now_s += seconds
        self.ledger.expire(self.now_s)

    @rule()
    def want_an_evaluation(self):
        self.ledger.evaluation_wanted = True

    @precondition(lambda self: len(self.leases) > 8)
    @rule()
    def close_training(self):
        self.closed = True
        self.ledger.close_training()

    @precondition(lambda self: len(self.leases) > 12)
    @rule()
    def stop(self):
        self.ledger.stopped = True

    def push(self, lease, apply):
        decision = self.ledger.push(lease.id, lease.id, self.now_s)
        if lease in self.in_hand[lease.device]:
            self.in_hand[lease.device].remove(lease)
        self.accepted[lease.id] += decision.accepted
        if lease.device in self.dropped or self.ledger.stopped:
            assert not decision.accepted
        job = decision.completed
        if job is None:
            return
        assert decision.accepted
        parts = [part for part, _ in job.parts()]
        assert all(payload == part.id for part, payload in job.parts())
        assert [part.start for part in parts] == [0, *(part.stop for part in parts[:-1])]
        assert parts[-1].stop == job.total
        assert {(p.batch, p.version, p.group, p.kind) for p in parts} == {
            (job.batch, job.version, job.group, job.kind)
        }
        if job.kind == "evaluate":
            assert job.total == 7
            self.evaluated.append(job.version)
        elif apply:
            assert job.total == batch_samples(job.batch)
            assert not self.closed
            assert self.ledger.applied(job) == self.ledger.version - 1 - job.version
            self.applied.append(job.batch)
        else:
            self.ledger.abandon(job)

    # -- what must hold at any moment -------------------------------------------------------------

    @invariant()
    def no_lease_is_accepted_twice(self):
        assert max(self.accepted.values(), default=0) <= 1

    @invariant()
    def every_batch_is_applied_once_or_owed(self):
        opened = set(range(self.first_batch, self.ledger.next_batch)) | self.first_owed
        assert sorted(self.applied + self.ledger.owed) == sorted(opened)

    @invariant()
    def the_version_counts_the_applied_batches_up_to_the_budget(self):
        assert self.ledger.version == self.first_version + len(self.applied)
        if self.last_version is not None:
            assert self.ledger.version <= self.last_version
            if not self.closed:
                assert self.ledger.exhausted == (self.ledger.version == self.last_version)

    @invariant()
    def what_is_held_is_bounded(self):
        assert self.ledger.pending <= len(self.leases)
        assert self.ledger.live_devices == sorted(set(self.devices) - self.dropped)
        assert self.ledger.versions_read() <= set(
            range(self.first_version, self.ledger.version + 1)
        )

    # -- what must come of it ---------------------------------------------------------------------

    def teardown(self):
        """All who are left push what they have and go on: the work must get done."""
        if not hasattr(self, "ledger") or self.ledger.stopped or not self.ledger.live_devices:
            return
        wanted = len(self.applied) + 4
        for _ in range(40):
            for device in self.ledger.live_devices:
                for lease in list(self.in_hand[device]):
                    self.push(lease, True)
                self.ask(device)
            self.now_s += 0.5
            self.ledger.expire(self.now_s)
            assert self.ledger.stalled(self.now_s) is None
            self.every_batch_is_applied_once_or_owed()
            done = self.ledger.exhausted or len(self.applied) >= wanted
            if done and not self.ledger.evaluation_wanted and self.ledger.validating is None:
                return
        raise AssertionError("devices that ask for ever get nothing although there is work")


LedgerMachine.TestCase.settings = settings(
    max_examples=100, stateful_step_count=40, deadline=None, database=None
)
TestLedger = LedgerMachine.TestCase


class Fleet:
    """Devices that take ``step_s(device, now_s)`` seconds a lease; None means that one hangs."""

    def __init__(self, ledger, step_s):
        self.ledger, self.step_s = ledger, step_s
        self.now_s = 0.0
        self.due: dict[int, tuple[float, Lease]] = {}
        self.refused = 0
        self.late: list[int] = []

    def run(self, seconds, tick_s=0.25):
        end_s = self.now_s + seconds
        while self.now_s < end_s and not self.ledger.exhausted:
            self.late += self.ledger.expire(self.now_s)
            for device in self.ledger.live_devices:
                due_s, lease = self.due.get(device, (self.now_s, None))
                if due_s > self.now_s:
                    continue
                if lease is not None:
                    del self.due[device]
                    decision = self.ledger.push(lease.id, None, self.now_s)
                    self.refused += not decision.accepted
                    if decision.completed is not None:
                        self.ledger.applied(decision.completed)
                answer = self.ledger.ask(device, self.now_s)
                if isinstance(answer, Lease):
                    step_s = self.step_s(device, self.now_s)
                    self.due[device] = (
                        float("inf") if step_s is None else self.now_s + step_s,
                        answer,
                    )
            self.now_s += tick_s


@pytest.mark.parametrize("groups", [[[0, 1, 2, 3]], [[0, 1], [2, 3]], [[0], [1], [2], [3]]])
@pytest.mark.parametrize("hung", [{0}, {1, 3}, {0, 1, 2}])
def test_devices_that_hang_for_ever_are_worked_around(groups, hung):
    ledger = ledger_of(*groups, last_version=60)
    fleet = Fleet(ledger, lambda device, now_s: None if device in hung and now_s > 10 else 1.0)
    fleet.run(900)
    assert ledger.version == 60
    assert set(fleet.late) <= hung


@pytest.mark.parametrize("groups", [[[0, 1]], [[0], [1]], [[0, 1], [2, 3]]])
def test_a_fleet_that_turns_slow_is_late_once_and_then_goes_on(groups):
    """All devices 20 times slower than they were: their deadlines must follow them."""
    ledger = ledger_of(*groups, last_version=40)
    fleet = Fleet(ledger, lambda device, now_s: 1.0 if now_s < 10 else 20.0)
    fleet.run(3000)
    assert ledger.version == 40
    assert fleet.refused <= 2 * sum(map(len, groups))


def test_when_all_hang_the_ledger_names_one_of_them():
    ledger = ledger_of([0], [1])
    fleet = Fleet(ledger, lambda device, now_s: 1.0 if now_s < 5 else None)
    fleet.run(OVERDUE_FLOOR_S * STALL_FACTOR + 20)
    assert ledger.stalled(fleet.now_s) in (0, 1)


def test_a_device_alone_is_never_taken_from_and_stalls_only_far_past_its_deadline():
    ledger = ledger_of([0])
    lease = ledger.ask(0, 0.0)
    ledger.push(lease.id, None, 6.0)  # one second a row
    ledger.ask(0, 6.0)
    deadline_s = OVERDUE_FACTOR * 6.0
    assert ledger.expire(6.0 + 2 * deadline_s) == []
    assert ledger.stalled(6.0 + STALL_FACTOR * deadline_s) is None
    assert ledger.stalled(6.1 + STALL_FACTOR * deadline_s) == 0


def test_a_deadline_is_a_multiple_of_what_the_device_usually_takes_but_never_short():
    for usual_s, deadline_s in ((0.06, OVERDUE_FLOOR_S), (6.0, OVERDUE_FACTOR * 6.0)):
        ledger = ledger_of([0], [1])
        ledger.ask(1, 0.0)
        for step in range(5):
            lease = ledger.ask(0, step * usual_s)
            ledger.push(lease.id, None, (step + 1) * usual_s)
        begun_s = 5 * usual_s
        lease = ledger.ask(0, begun_s)
        assert ledger.expire(begun_s + deadline_s) == []
        assert ledger.expire(begun_s + deadline_s + 0.01) == [0]
        assert not ledger.push(lease.id, None, begun_s + deadline_s + 0.02).accepted


def test_a_device_that_has_never_answered_is_given_long():
    ledger = ledger_of([0], [1])
    ledger.ask(0, 0.0)
    assert ledger.expire(FIRST_LEASE_S) == []
    assert ledger.expire(FIRST_LEASE_S + 1) == [0]


def test_the_rows_of_an_overdue_member_go_to_its_group_and_it_comes_back_with_the_next_batch():
    ledger = ledger_of([0, 1])
    mine, other = ledger.ask(0, 0.0), ledger.ask(1, 0.0)
    ledger.push(mine.id, "mine", 1.0)
    assert ledger.expire(FIRST_LEASE_S + 1) == [1]
    again = ledger.ask(0, FIRST_LEASE_S + 1)
    assert (again.batch, again.start, again.stop) == (other.batch, other.start, other.stop)
    assert not ledger.push(other.id, "late", FIRST_LEASE_S + 2).accepted
    assert ledger.ask(1, FIRST_LEASE_S + 2) is Answer.WAIT
    completed = ledger.push(again.id, "again", FIRST_LEASE_S + 3).completed
    assert [payload for _, payload in completed.parts()] == ["mine", "again"]
    ledger.applied(completed)
    assert ledger.ask(1, FIRST_LEASE_S + 4).batch == completed.batch + 1


def test_a_group_with_nobody_left_hands_its_batch_on_first():
    ledger = ledger_of([0], [1])
    ledger.ask(0, 0.0), ledger.ask(1, 0.0)
    ledger.drop(0, 1.0)
    assert ledger.owed == [0, 1]
    held = ledger.versions_read()
    assert held == {0}
    ledger.expire(10 * FIRST_LEASE_S)  # the other one has nobody to take its place
    assert ledger.owed == [0, 1]


def test_a_batch_smaller_than_its_group_leaves_the_slow_members_waiting():
    ledger = Ledger(groups=[[0, 1, 2]], speeds=[1.0, 9.0, 1.0], batch_samples=lambda batch: 1)
    answers = [ledger.ask(device, 0.0) for device in range(3)]
    assert [answer is Answer.WAIT for answer in answers] == [True, False, True]
    assert answers[1].weight == 1.0
    ledger.applied(ledger.push(answers[1].id, None, 1.0).completed)
    assert ledger.ask(1, 1.0).batch == 1


def test_members_of_a_group_share_one_version_while_others_move_on():
    ledger = ledger_of([0, 1], [2])
    first = ledger.ask(0, 0.0)
    for step in range(3):
        lease = ledger.ask(2, float(step))
        ledger.applied(ledger.push(lease.id, None, step + 0.5).completed)
    late = ledger.ask(1, 4.0)
    assert (late.batch, late.version) == (first.batch, first.version) == (0, 0)
    ledger.push(first.id, None, 5.0)
    job = ledger.push(late.id, None, 5.0).completed
    assert ledger.applied(job) == 3


def test_an_evaluation_lost_with_its_group_is_wanted_again():
    ledger = ledger_of([0], [1], validation_samples=5)
    ledger.evaluation_wanted = True
    lease = ledger.ask(0, 0.0)
    assert (lease.kind, lease.total, ledger.validating) == ("evaluate", 5, 0)
    ledger.drop(0, 1.0)
    assert ledger.validating is None
    assert ledger.ask(1, 1.0).kind == "evaluate"
    assert ledger.owed == []


def test_closing_training_owes_what_is_out_and_lets_an_evaluation_finish():
    ledger = ledger_of([0], [1], [2], validation_samples=5)
    lease = ledger.ask(0, 0.0)
    ledger.evaluation_wanted = True
    evaluation = ledger.ask(1, 0.0)
    ledger.close_training()
    assert not ledger.push(lease.id, None, 1.0).accepted
    assert ledger.owed == [0]
    assert ledger.ask(2, 1.0) is Answer.WAIT
    assert ledger.push(evaluation.id, None, 1.0).completed.kind == "evaluate"


def test_an_absent_device_is_dealt_nothing_until_it_asks():
    ledger = ledger_of([0, 1])
    ledger.mark_absent(1)
    lease = ledger.ask(0, 0.0)
    assert lease.weight == 1.0
    assert ledger.ask(1, 0.0) is Answer.WAIT
    ledger.applied(ledger.push(lease.id, None, 1.0).completed)
    assert ledger.ask(0, 1.0).weight == ledger.ask(1, 1.0).weight == 0.5


def test_a_validation_slower_than_training_is_late_once_and_then_gets_done():
    """Its deadline starts from the training's seconds a row, and must not stay there."""
    ledger = ledger_of([0], [1], validation_samples=6)
    for device in (0, 1):
        lease = ledger.ask(device, 0.0)
        ledger.applied(ledger.push(lease.id, None, 0.6).completed)
    ledger.evaluation_wanted = True
    accepted = []
    for begun_s in (1.0, 21.0, 41.0):
        lease = ledger.ask(0, begun_s)
        assert lease.kind == ("train" if any(accepted) else "evaluate")
        ledger.expire(begun_s + 20.0)
        accepted.append(ledger.push(lease.id, None, begun_s + 20.0).accepted)
    assert accepted[:2] == [False, True]


def test_a_member_that_never_asks_for_its_rows_loses_them_too():
    ledger = ledger_of([0, 1])
    lease = ledger.ask(0, 0.0)
    ledger.push(lease.id, None, 1.0)
    assert ledger.expire(FIRST_LEASE_S + 1) == [1]
    assert ledger.ask(0, FIRST_LEASE_S + 1).start == 3


def test_rows_dealt_again_have_their_full_time_from_then_on():
    ledger = ledger_of([0, 1, 2])
    for device in (0, 1):
        ledger.push(ledger.ask(device, 0.0).id, None, 1.0)
    assert ledger.expire(FIRST_LEASE_S + 1) == [2]
    assert ledger.expire(FIRST_LEASE_S + 2) == []


def test_a_stopped_ledger_refuses_every_push():
    ledger = ledger_of([0])
    lease = ledger.ask(0, 0.0)
    ledger.stopped = True
    assert not ledger.push(lease.id, None, 1.0).accepted
    assert ledger.owed == [0]


def test_a_push_completes_its_batch_when_no_other_share_is_out_or_waiting():
    ledger = ledger_of([0, 1])
    first = ledger.ask(0, 0.0)
    assert not ledger.completes(first.id)  # the other share has not even been asked for
    second = ledger.ask(1, 0.0)
    assert not ledger.completes(second.id)
    ledger.push(first.id, "part", 1.0)
    assert ledger.completes(second.id)
    assert not ledger.completes(first.id)
