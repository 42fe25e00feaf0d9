"""Ask and tell, saving and restoring, and what becomes of strange outcomes."""

import copy
import json
import math
import pickle
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from omnivore_ray.efficiency.hardware import HardwareModel
from omnivore_ray.search.algorithm import OmnivoreAlgorithm
from omnivore_ray.search.fixed import FixedAlgorithm
from omnivore_ray.search.published import PublishedAlgorithm
from omnivore_ray.search.scripted import COLUMNS, CURVE_POINTS, ScriptedAlgorithm, condense
from omnivore_ray.strategy import Outcome, Request, Strategy

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

from synthetic.draws import surfaces
from synthetic.surface import State

HARDWARE = HardwareModel(num_devices=32, t_compute=3.5, t_link=0.01, t_head=0.1)
SURFACE = surfaces(1, seed=7, L=8000)[0]


def make(kind: str) -> ScriptedAlgorithm:
    if kind == "published":
        return PublishedAlgorithm(32)
    return OmnivoreAlgorithm(32, hardware=HARDWARE)


def record(algorithm: ScriptedAlgorithm, limit: int = 60) -> list[tuple[Request, Outcome]]:
    """Plays on a surface; every outcome is kept."""
    rng, states = np.random.default_rng(0), {None: State()}
    told = []
    while len(told) < limit and (request := algorithm.ask()) is not None:
        outcome, after = SURFACE.run(request, states[request.resume_from], rng)
        if outcome.ok:
            outcome = replace(outcome, checkpoint_path=f"state {len(states)}")
            states[outcome.checkpoint_path] = after
        algorithm.tell(request, outcome)
        told.append((request, outcome))
    return told


@pytest.mark.parametrize("kind", ["ours", "published"])
@pytest.mark.parametrize("how", ["state_dict", "pickle", "deepcopy"])
def test_a_restored_search_asks_what_the_uninterrupted_one_asks(kind: str, how: str) -> None:
    whole = make(kind)
    told = record(whole)
    for cut in (0, 1, 4, len(told) // 2, len(told) - 1):
        first = make(kind)
        for request, outcome in told[:cut]:
            assert first.ask() == request
            first.tell(request, outcome)
        if how == "state_dict":
            second = make(kind)
            second.load_state_dict(json.loads(json.dumps(first.state_dict())))
        else:
            second = pickle.loads(pickle.dumps(first)) if how == "pickle" else copy.deepcopy(first)
        for request, outcome in told[cut:]:
            assert second.ask() == request
            second.tell(request, outcome)
        assert second.best == whole.best
        assert repr(second.decisions()) == repr(whole.decisions())


def test_a_request_is_repeated_until_it_is_told() -> None:
    algorithm = make("ours")
    request = algorithm.ask()
    assert request is not None and algorithm.ask() == request
    algorithm.tell(request, Outcome(status="diverged", updates=3, seconds=1.0))
    assert algorithm.ask() != request


def test_a_repeated_tell_is_ignored_and_a_stranger_refused() -> None:
    algorithm = make("ours")
    request = algorithm.ask()
    assert request is not None
    outcome = Outcome(status="diverged", updates=3, seconds=1.0)
    algorithm.tell(request, outcome)
    following = algorithm.ask()
    algorithm.tell(request, outcome)
    assert algorithm.ask() == following and len(algorithm.decisions()) == 1
    stranger = Request(kind="probe", strategy=Strategy(learning_rate=123.0))
    with pytest.raises(ValueError, match="never asked"):
        algorithm.tell(stranger, outcome)


@pytest.mark.parametrize("status", ["target_reached", "out_of_time"])
def test_an_outcome_that_ends_the_run_ends_the_search(status: str) -> None:
    algorithm = make("ours")
    request = algorithm.ask()
    assert request is not None
    algorithm.tell(request, Outcome(status=status))  # type: ignore[arg-type]
    assert algorithm.ask() is None and algorithm.failure is None
    assert algorithm.best == request.strategy
    algorithm.tell(request, Outcome(status="completed"))
    assert len(algorithm.decisions()) == 1


def test_a_state_of_other_settings_is_refused() -> None:
    state = make("ours").state_dict()
    with pytest.raises(ValueError, match="settings"):
        OmnivoreAlgorithm(16, hardware=HARDWARE).load_state_dict(state)
    with pytest.raises(ValueError, match="algorithm"):
        PublishedAlgorithm(32).load_state_dict(state)


def test_decisions_have_one_row_a_request_with_every_column() -> None:
    algorithm = make("ours")
    told = record(algorithm)
    rows = algorithm.decisions()
    assert len(rows) == len(told)
    for row, (request, outcome) in zip(rows, told, strict=True):
        assert tuple(row) == COLUMNS
        assert row["kind"] == request.kind and row["groups"] == request.strategy.groups
        assert row["updates"] == outcome.updates and row["reason"] and row["verdict"]
        assert row["predicted_seconds_per_update"] > 0


def test_fixed_trains_once_and_says_why_when_it_diverges() -> None:
    strategy = Strategy(groups=2, learning_rate=0.1)
    algorithm = FixedAlgorithm(strategy)
    request = algorithm.ask()
    assert request is not None and request.kind == "train" and request.strategy == strategy
    assert request.budget_updates is None and request.budget_s is None
    algorithm.tell(request, Outcome(status="diverged", updates=7, reason="loss is nan"))
    assert algorithm.ask() is None
    assert "groups=2" in str(algorithm.failure) and "loss is nan" in str(algorithm.failure)


def test_condensing_keeps_updates_seconds_and_mean_loss() -> None:
    rng = np.random.default_rng(1)
    ends = np.cumsum(rng.integers(1, 9, 500))
    losses = rng.random(500)
    curve = tuple(zip(ends.tolist(), (0.1 * ends).tolist(), losses.tolist(), strict=True))
    whole = Outcome(status="completed", updates=int(ends[-1]), seconds=9.0, loss=0.5, curve=curve)
    short = condense(whole).curve
    assert len(short) <= CURVE_POINTS and short[-1][:2] == pytest.approx(curve[-1][:2])
    mean = lambda c: np.average([p[2] for p in c], weights=np.diff([0, *(p[0] for p in c)]))  # noqa: E731
    assert mean(short) == pytest.approx(mean(curve))
    assert condense(condense(whole)) == condense(whole)
    assert condense(whole, maximise=True).loss == -whole.loss
    assert mean(condense(whole, maximise=True).curve) == pytest.approx(-mean(curve))


@pytest.mark.parametrize("loss", [math.nan, math.inf, -math.inf])
def test_a_loss_that_is_not_finite_is_divergence(loss: float) -> None:
    outcome = condense(Outcome(status="completed", updates=5, seconds=1.0, loss=loss))
    assert outcome.status == "diverged" and outcome.checkpoint_path is None


def test_updates_without_seconds_are_a_failure_that_says_so() -> None:
    outcome = condense(Outcome(status="completed", updates=5, seconds=0.0, loss=1.0))
    assert outcome.status == "failed" and "0.0 seconds" in outcome.reason


def test_points_that_do_not_advance_or_are_not_finite_are_dropped() -> None:
    curve = ((1, 1.0, 3.0), (1, 1.1, 9.0), (2, 0.5, 9.0), (3, math.nan, 9.0), (4, 2.0, math.inf))
    outcome = Outcome(status="completed", updates=9, seconds=3.0, loss=2.0, curve=curve)
    assert condense(outcome).curve == ((1, 1.0, 3.0),)
    assert condense(replace(outcome, curve=())).curve == ((9, 3.0, 2.0),)
