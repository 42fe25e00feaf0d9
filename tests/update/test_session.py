"""Endings, validation, losses of devices: what a request leaves behind must be exact."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from omnivore_ray.data.datasets import Split
from omnivore_ray.strategy import Request, Strategy
from omnivore_ray.update.ledger import FIRST_LEASE_S, OVERDUE_FLOOR_S, Answer
from omnivore_ray.update.parts import Part
from omnivore_ray.workload import Target


def net() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 2)).double()


def linear() -> nn.Module:
    """Without BatchNorm, which cannot train on the single rows that four members may get."""
    torch.manual_seed(1)
    return nn.Linear(6, 2).double()


def error(outputs, targets):
    return (outputs - targets).square().mean()


@pytest.fixture
def validated(regression):
    """The regression workload with 50 rows of validation data and the metric ``error``."""

    def make(model=net, **fields):
        base = regression(model)
        inputs, targets = base.data
        data = Split(train=(inputs, targets), validation=(inputs[:50], targets[:50]))
        return regression(model, data=data, metrics={"error": error}, **fields)

    return make


def tensors_of(parameters):
    velocity = {f"velocity {name}": value for name, value in parameters.velocity().items()}
    return {n: t.clone() for n, t in {**parameters.state_dict(), **velocity}.items()}


def assert_same_tensors(one, other):
    assert one.keys() == other.keys()
    for name in one:
        assert torch.equal(one[name], other[name]), name


def assert_counts_are_exact(session, batch_size=32, rows=100):
    """Every batch up to the last one opened was applied once, or is owed."""
    state, columns = session.state, session.history.columns
    assert columns["version"] == list(range(1, state.version + 1))
    assert state.next_batch == state.version + len(state.owed)
    sizes = [32, 32, 32, 4]
    opened = [sizes[batch % 4] for batch in range(state.next_batch)]
    owed = [sizes[batch % 4] for batch in state.owed]
    assert sorted(columns["samples"] + owed) == sorted(opened)
    assert state.samples == sum(columns["samples"])
    assert [
        v - r - 1 for v, r in zip(columns["version"], columns["version_read"], strict=True)
    ] == (columns["staleness"])


# -- validation --------------------------------------------------------------------------------


@pytest.mark.parametrize("groups", [1, 4])
def test_a_target_met_returns_to_exactly_the_state_that_was_validated(fleet, validated, groups):
    """The state at each validation's begin is recorded independently, and validation is slow."""
    workload = validated(net if groups == 4 else linear)
    running = fleet(
        workload,
        (1.0,) * 4,
        target=Target("error", at_most=3.0),
        evaluate_every_s=40.0,
        step_s=lambda device, samples: 30.0 if samples in (50, 12, 13) else 1.0 + device / 7,
    )
    begun = {}

    def record(session, device, lease_id, now_s):
        version = session._ledger.validating
        if version is not None and version == session._ledger.version and version not in begun:
            begun[version] = (
                tensors_of(running.parameters),
                session.snapshot_state(),
                len(session.history),
            )

    session = running.run(500, groups=groups, momentum=0.3, learning_rate=0.02, on_push=record)
    assert session.ending.status == "target_reached"
    tensors, state, rows = begun[session.state.version]
    assert_same_tensors(tensors_of(running.parameters), tensors)
    assert len(session.history) == rows == session.state.version
    taken = (session.state.samples, session.state.next_batch, sorted(session.state.owed))
    assert taken == (state.samples, state.next_batch, sorted(state.owed))
    assert session.state.smoothed == state.smoothed
    assert_counts_are_exact(session)
    assert session.state.metrics["error"] <= 3.0
    with torch.no_grad():
        held = [torch.as_tensor(array) for array in (workload.data.validation)]
        assert error(running.model.eval()(held[0]), held[1]).item() == pytest.approx(
            session.state.metrics["error"], rel=1e-9
        )
    if groups == 4:
        assert "taken back" in session.outcome(running.now_s, "c").reason
    # and what comes next goes on from there
    running.target = None
    after = running.run(10, groups=groups)
    assert after.state.version == state.version + 10
    assert sorted(after.history.columns["version"])[0] == state.version + 1


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize(
    ("ending", "options"),
    [
        ("completed", {"updates": 7}),
        ("out_of_time", {"time_limit_s": 300.0}),
        ("target_reached", {"target": Target("updates", at_least=7)}),
        ("target_reached", {"target": Target("samples", at_least=200)}),
        ("target_reached", {"target": Target("seconds", at_least=100.0)}),
        ("target_reached", {"target": Target("loss", at_most=1e9)}),
    ],
)
def test_every_ending_validates_the_last_version(fleet, validated, groups, ending, options):
    updates = options.pop("updates", None)
    running = fleet(validated(), (1.0, 1.3), **options)
    session = running.run(updates, groups=groups)
    options["updates"] = updates  # parametrized values are shared
    assert session.ending.status == ending
    assert_counts_are_exact(session)
    held = [torch.as_tensor(array) for array in running.workload.data.validation]
    with torch.no_grad():
        value = error(running.model.eval()(held[0]), held[1]).item()
    assert session.state.metrics["error"] == pytest.approx(value, rel=1e-9)
    if updates:
        assert len(session.history) == updates
    assert session.outcome(running.now_s, "c").checkpoint_path == "c"


def test_a_probe_never_validates(fleet, validated):
    running = fleet(validated(), (1.0,), evaluate_every_s=1.0)
    session = running.run(20, kind="probe")
    assert session.ending.status == "completed"
    assert session.state.metrics == {}


def test_a_budget_of_seconds_ends_on_the_requests_own_clock(fleet, regression):
    running = fleet(regression(net), (32.0,), step_s=lambda device, samples: 1.0)
    running.run(5)
    strategy = Strategy(learning_rate=0.05)
    session = running.session(Request(kind="probe", strategy=strategy, budget_s=3.0))
    begun_s = running.now_s
    for step in range(10):
        answer = session.ask(0, begun_s + step)
        if answer is Answer.STOP:
            break
        lease, block = answer
        session.push(lease.id, running._compute(0, lease, block), begun_s + step + 0.9)
    assert session.ending.status == "completed"
    assert session.used_s(begun_s + 100) == pytest.approx(3.0)


# -- divergence --------------------------------------------------------------------------------


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize(
    ("bad", "words"),
    [({"loss": math.nan}, "loss is"), ({"loss": math.inf}, "loss is"), ({"finite": False}, "grad")],
)
def test_a_bad_update_ends_as_diverged_with_the_state_before_it(
    fleet, regression, groups, bad, words, monkeypatch
):
    running = fleet(regression(net), (1.0, 1.3))
    before = {}
    compute = running._compute

    def spoiled(device, lease, block):
        part = compute(device, lease, block)
        if lease.batch == 9:
            fields = {"block": part.block, "present": part.present, "loss": part.loss}
            return Part(**{**fields, **bad})
        return part

    monkeypatch.setattr(running, "_compute", spoiled)
    session = running.run(
        50,
        groups=groups,
        momentum=0.5,
        on_push=lambda *_: before.update(tensors_of(running.parameters)),
    )
    assert session.ending.status == "diverged"
    assert words in session.ending.reason
    assert f"at update {session.state.version + 1}" in session.ending.reason
    assert_same_tensors(tensors_of(running.parameters), before)
    assert 9 in session.state.owed
    assert_counts_are_exact(session)
    assert session.outcome(running.now_s, "c").checkpoint_path is None


def test_a_loss_that_explodes_ends_as_diverged(fleet, regression):
    running = fleet(regression(linear))
    session = running.run(10_000, learning_rate=1.5)
    assert session.ending.status == "diverged"
    assert "learning_rate=1.5" in session.ending.reason


# -- devices that are lost -------------------------------------------------------------------


@pytest.mark.parametrize("groups", [1, 2, 4])
def test_devices_dropped_in_the_middle_of_a_batch_change_no_count(fleet, validated, groups):
    running = fleet(validated(linear), (1.0, 1.0, 2.0, 1.5), evaluate_every_s=100.0)
    lost = []

    def lose(session, device, lease_id, now_s):
        if len(session.history) == 5 * (len(lost) + 1) and len(lost) < 3:
            session.drop(device, f"device {device} was lost", now_s)
            lost.append(device)

    session = running.run(40, groups=groups, on_push=lose)
    assert session.ending.status == "completed"
    assert len(lost) == 3
    assert len(session.history) == 40
    assert_counts_are_exact(session)
    assert all(f"device {device} was lost" in session.outcome(0.0, None).reason for device in lost)


def test_a_lost_member_does_not_change_what_is_computed(fleet, regression):
    """Its rows are computed by the others: the same batch, the same update."""
    one, other = (fleet(regression(linear), (1.0, 1.0)) for _ in range(2))
    one.run(20, momentum=0.5)

    def lose(session, device, lease_id, now_s):
        if len(session.history) == 7 and device == 1:
            session.drop(1, "gone", now_s)

    other.run(20, momentum=0.5, on_push=lose)
    for mine, theirs in zip(one.model.parameters(), other.model.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=0, atol=1e-12)


def test_without_any_device_left_the_request_fails_and_names_the_last(fleet, regression):
    running = fleet(regression(net), (1.0, 1.0))

    def lose(session, device, lease_id, now_s):
        if len(session.history) == 3:
            session.drop(0, "zero", now_s)
            session.drop(1, "one", now_s)

    session = running.run(10, groups=2, on_push=lose)
    assert session.ending.status == "failed"
    assert session.ending.reason.endswith("one")
    assert_counts_are_exact(session)


@pytest.mark.parametrize("groups", [1, 2])
def test_an_overdue_device_is_worked_around_and_its_late_push_refused(fleet, regression, groups):
    slow = {"left": 1}

    def step_s(device, samples):
        if device == 1 and running.now_s > 50 and slow["left"]:
            slow["left"] -= 1
            return 10_000.0
        return 1.0 + 0.1 * device

    running = fleet(regression(net), (1.0, 1.0), step_s=step_s)
    session = running.run(400, groups=groups)
    assert session.ending.status == "completed"
    assert "device 1 was overdue" in session.outcome(0.0, None).reason
    assert not slow["left"]
    assert_counts_are_exact(session)


def test_a_late_push_is_refused_and_the_device_comes_back(fleet, regression):
    running = fleet(regression(net), (1.0, 1.0))
    strategy = Strategy(learning_rate=0.05, groups=2)
    session = running.session(Request(kind="train", strategy=strategy))
    assert session.ask(0, 0.0) is Answer.WAIT  # until everybody is there
    lease, block = session.ask(1, 0.0)
    session.ask(0, 0.0)
    late = running._compute(1, lease, block)
    session.tick(FIRST_LEASE_S + 1.0)
    refused = [session.push(lease.id, late, FIRST_LEASE_S + 2.0) for _ in range(2)]
    assert refused == [False, False]
    again, _ = session.ask(1, FIRST_LEASE_S + 3.0)
    assert again.id != lease.id
    assert session.state.version == 0


def test_the_clock_starts_when_everybody_is_there_or_has_been_waited_for(fleet, regression):
    running = fleet(regression(net), (1.0, 1.0))
    strategy = Strategy(learning_rate=0.05)
    session = running.session(Request(kind="train", strategy=strategy))
    assert session.ask(0, 1.0) is Answer.WAIT
    assert session.used_s(3.0) == 0.0
    lease, _ = session.ask(0, OVERDUE_FLOOR_S + 1.0)
    assert lease.weight == 1.0  # nothing is dealt to who is not there
    assert session.used_s(OVERDUE_FLOOR_S + 3.0) == 2.0


# -- interruption --------------------------------------------------------------------------------


def test_an_interrupted_request_keeps_its_budget_of_updates_and_seconds(fleet, regression):
    running = fleet(regression(net), (1.0, 1.3))

    def interrupt(session, device, lease_id, now_s):
        if len(session.history) == 9:
            session.stop("Ctrl-C", now_s)

    first = running.run(25, groups=2, on_push=interrupt)
    assert first.ending.status == "interrupted"
    used_s = first.used_s(running.now_s)
    running.now_s += 1000.0  # it stood still that long
    rest = running.run(25, groups=2, history=first.history, used_s=used_s)
    assert len(rest.history) == 25
    assert_counts_are_exact(rest)
    outcome = rest.outcome(running.now_s, None)
    assert (outcome.updates, outcome.samples) == (25, rest.state.samples)
    assert used_s < outcome.seconds < used_s + 1000.0


def test_seconds_used_before_an_interruption_count_towards_the_budget(fleet, regression):
    running = fleet(regression(net))
    request = Request(kind="train", strategy=Strategy(learning_rate=0.05), budget_s=10.0)
    session = running.session(request, used_s=7.0)
    session.ask(0, 0.0)
    session.tick(2.9)
    assert session.ending is None
    session.tick(3.0)
    assert session.ending.status == "completed"
    assert session.outcome(50.0, None).seconds == 10.0


def test_the_last_validation_is_of_the_last_version_not_of_one_under_way(fleet, validated):
    """One begins long before the budget ends, and is still out when it does."""
    running = fleet(
        validated(linear),
        (1.0, 1.0),
        evaluate_every_s=5.0,
        step_s=lambda device, samples: 7.0 if samples == 50 else 1.0,
    )
    under_way = []

    def note(session, device, lease_id, now_s):
        if session._closing is not None:
            under_way.append(session._ledger.validating)

    session = running.run(13, groups=2, on_push=note)
    assert session.ending.status == "completed"
    assert under_way[0] < under_way[-1] == 13
    held = [torch.as_tensor(array) for array in running.workload.data.validation]
    with torch.no_grad():
        value = error(running.model(held[0]), held[1]).item()
    assert session.state.metrics["error"] == pytest.approx(value, rel=1e-9)


def test_a_request_interrupted_at_its_very_end_only_ends(fleet, validated):
    running = fleet(validated(), (1.0,))
    first = running.run(5)
    running.state.metrics.clear()
    again = running.run(5, history=first.history, used_s=3.0)
    assert again.ending.status == "completed"
    assert (len(again.history), again.state.version) == (5, 5)
    assert set(again.state.metrics) == {"error"}


# -- what is told --------------------------------------------------------------------------------


@pytest.mark.parametrize("updates", [1, 199, 200, 201, 999])
def test_the_curve_has_few_points_and_keeps_the_mean_loss(fleet, regression, updates):
    running = fleet(regression(net), (1.0,))
    session = running.run(updates)
    outcome = session.outcome(running.now_s, None)
    assert len(outcome.curve) <= 200
    ends = [0, *(point[0] for point in outcome.curve)]
    assert ends == sorted(set(ends))
    assert ends[-1] == updates
    total = sum(
        loss * (end - begin) for (end, _, loss), begin in zip(outcome.curve, ends[:-1], strict=True)
    )
    assert total / updates == pytest.approx(session.history.mean("loss"), rel=1e-9)
    seconds = [point[1] for point in outcome.curve]
    assert seconds == sorted(seconds)
    assert 0 < seconds[-1] <= outcome.seconds


def test_the_short_batch_at_the_end_of_an_epoch_is_used(fleet, regression):
    session = fleet(regression(net), (1.0, 1.0)).run(8, groups=2)
    assert sorted(session.history.columns["samples"]) == [4, 4, *[32] * 6]


def test_progress_tells_rates_of_this_stretch_and_counts_of_the_run(fleet, regression):
    running = fleet(regression(net), (4.0,))
    running.run(8)
    session = running.run(4)
    told = session.progress(running.now_s)
    assert (told["updates"], told["samples"]) == (12, 300)
    assert told["samples_per_s"] == pytest.approx(4.0)
    assert told["seconds_per_update"] == pytest.approx(100 / 4 / 4)
    assert told["staleness_mean"] == 0.0


def test_an_outcome_tells_the_last_events_of_a_device_that_comes_and_goes(fleet, regression):
    session = fleet(regression(linear)).session(
        Request(kind="train", strategy=Strategy(learning_rate=0.1), budget_updates=1)
    )
    session.events += [f"event {number}" for number in range(1000)]
    reason = session.outcome(0.0, None).reason
    assert "992 events before; event 992" in reason
    assert reason.endswith("event 999")
    assert len(reason) < 300
