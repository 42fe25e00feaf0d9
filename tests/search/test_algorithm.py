"""Our search on surfaces with known truth, and under outcomes no search should see."""

import itertools
import math
import sys
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pytest

from omnivore_ray.efficiency.hardware import HardwareModel
from omnivore_ray.search.algorithm import OmnivoreAlgorithm
from omnivore_ray.strategy import Outcome, Request, Strategy

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

from synthetic.draws import all_diverge, draw
from synthetic.play import play
from synthetic.surface import State, Surface

HARDWARE = HardwareModel(num_devices=32, t_compute=3.5, t_link=0.01, t_head=0.1)
Spoil = Callable[[Request, Outcome, np.random.Generator], Outcome]


def surface(seed: int, L: float = 8000, noise_sd: float = 0.05) -> Surface:
    return replace(draw(np.random.default_rng(seed), L), noise_sd=noise_sd)


@dataclass
class Tape:
    """Everything asked and told in one run."""

    requests: list[Request] = field(default_factory=list)
    outcomes: list[Outcome] = field(default_factory=list)

    def run(
        self,
        algorithm: OmnivoreAlgorithm,
        on: Surface,
        spoil: Spoil = lambda request, outcome, rng: outcome,
        limit: int = 80,
        seed: int = 0,
    ) -> "Tape":
        rng, states = np.random.default_rng(seed), {None: State()}
        while len(self.requests) < limit and (request := algorithm.ask()) is not None:
            outcome, after = on.run(request, states[request.resume_from], rng)
            outcome = spoil(request, outcome, rng)
            if outcome.ok:
                outcome = replace(outcome, checkpoint_path=f"state {len(states)}")
                states[outcome.checkpoint_path] = after
            self.requests.append(request)
            self.outcomes.append(outcome)
            algorithm.tell(request, outcome)
        return self


def never_there(on: Surface) -> Surface:
    """The same surface with a target nobody reaches in a test."""
    return replace(on, c=0.0, L=1e9)


@pytest.mark.parametrize("seed", range(6))
def test_arrives_soon_after_the_best_fixed_strategy(seed: int) -> None:
    on = surface(seed)
    best_s, _ = on.best_fixed()
    game = play(OmnivoreAlgorithm(32, hardware=HARDWARE), on, seed, 3 * best_s)
    assert game.seconds <= 1.7 * best_s


def test_timing_runs_come_first_and_only_without_a_hardware_model() -> None:
    tape = Tape().run(OmnivoreAlgorithm(32), surface(0), limit=8)
    timing = [r for r in tape.requests if r.reason == "timing run"]
    assert tape.requests[:3] == timing
    assert {r.strategy.groups for r in timing} == {1, 8, 32}
    tape = Tape().run(OmnivoreAlgorithm(32, hardware=HARDWARE), surface(0), limit=8)
    assert not any(r.reason == "timing run" for r in tape.requests)


@pytest.mark.parametrize("num_devices", [1, 2, 3, 6])
def test_few_devices(num_devices: int) -> None:
    tape = Tape().run(OmnivoreAlgorithm(num_devices, rounds=1), never_there(_for(num_devices)))
    assert {r.strategy.groups for r in tape.requests} <= set(range(1, num_devices + 1))
    assert tape.requests[-1].kind == "train"


def _for(num_devices: int) -> Surface:
    on = surface(0)
    parts = {name: getattr(on.clock, name) for name in ("compute_s", "link_s", "head_s", "jitter")}
    return replace(on, clock=type(on.clock)(num_devices=num_devices, seed=0, **parts))


def test_probes_have_at_least_eighty_updates_of_the_slowest_in_the_race() -> None:
    tape = Tape().run(OmnivoreAlgorithm(32, hardware=HARDWARE), surface(1), limit=30)
    for request, outcome in zip(tape.requests, tape.outcomes, strict=True):
        fresh = request.resume_from is None and "extended" not in request.reason
        if request.kind == "probe" and outcome.ok and fresh:
            assert outcome.updates >= 0.7 * 80


@pytest.mark.parametrize("seed", range(4))
def test_later_probes_stay_within_their_share(seed: int) -> None:
    on = never_there(surface(seed))
    algorithm = OmnivoreAlgorithm(32, hardware=HARDWARE, rounds=6, probe_share=0.1)
    Tape().run(algorithm, on)
    rows = algorithm.decisions()
    start = next(i for i, row in enumerate(rows) if row["kind"] == "train")
    assert {row["round"] for row in rows[start:]} == set(range(7))
    for end in range(start + 1, len(rows) + 1):
        probes = sum(row["seconds"] for row in rows[start:end] if row["kind"] == "probe")
        assert probes <= 0.11 * sum(row["seconds"] for row in rows[start:end])


def test_all_cold_probes_share_one_start_and_training_keeps_the_furthest_state() -> None:
    tape = Tape().run(OmnivoreAlgorithm(32, hardware=HARDWARE), surface(2), limit=40)
    first = next(i for i, r in enumerate(tape.requests) if r.kind == "train")
    origin: dict[str | None, Strategy] = {}
    for request, outcome in zip(tape.requests[:first], tape.outcomes[:first], strict=True):
        if request.resume_from is not None:
            assert origin[request.resume_from] == request.strategy
        if outcome.ok:
            origin[outcome.checkpoint_path] = request.strategy
    assert tape.requests[first].resume_from in origin


def test_all_racers_of_a_round_and_the_incumbent_start_from_the_last_stretch() -> None:
    on = never_there(surface(3))
    tape = Tape().run(OmnivoreAlgorithm(32, hardware=HARDWARE, rounds=5), on)
    stretch = None
    incumbent = None
    racers: dict[int, list[Strategy]] = {}
    for request, outcome in zip(tape.requests, tape.outcomes, strict=True):
        if request.kind == "train":
            stretch, incumbent = outcome.checkpoint_path, request.strategy
        elif request.round > 0:
            assert request.resume_from == stretch
            racers.setdefault(request.round, []).append(request.strategy)
            assert racers[request.round][0] == incumbent
    assert len(racers) == 5 and all(len(each) >= 2 for each in racers.values())


def test_rounds_try_every_direction() -> None:
    on = never_there(surface(3))
    algorithm = OmnivoreAlgorithm(32, hardware=HARDWARE, rounds=12)
    Tape().run(algorithm, on)
    reasons = " ".join(row["reason"] for row in algorithm.decisions())
    for name in ("lower learning rate", "higher learning rate", "less momentum", "fewer groups"):
        assert name in reasons


def test_the_incumbent_stays_when_only_noise_differs() -> None:
    def noise(request: Request, outcome: Outcome, rng: np.random.Generator) -> Outcome:
        if request.round == 0:
            return outcome
        curve = tuple((n, t, 1 + 0.2 * rng.standard_normal()) for n, t, _ in outcome.curve)
        return replace(outcome, curve=curve)

    switches = races = 0
    for seed in range(5):
        algorithm = OmnivoreAlgorithm(32, hardware=HARDWARE, rounds=8)
        Tape().run(algorithm, never_there(surface(seed)), noise, seed=seed)
        trained = [row for row in algorithm.decisions() if row["kind"] == "train"]
        keys = [(row["groups"], row["learning_rate"], row["momentum"]) for row in trained]
        switches += sum(a != b for a, b in itertools.pairwise(keys))
        races += len(keys) - 1
    assert races == 40 and switches <= 4


@pytest.mark.parametrize(
    ("name", "better"),
    [
        ("fewer groups", lambda s, first: s.groups < first.groups),
        ("higher learning rate", lambda s, first: s.learning_rate > first.learning_rate),
        ("lower learning rate", lambda s, first: s.learning_rate < first.learning_rate),
    ],
)
def test_a_neighbour_that_clearly_gains_takes_over(name: str, better: Callable) -> None:
    """After the cold start one direction halves every loss."""
    first: list[Strategy] = []

    def drift(request: Request, outcome: Outcome, rng: np.random.Generator) -> Outcome:
        if request.kind == "train" and not first:
            first.append(request.strategy)
        if request.round == 0 or not better(request.strategy, first[0]):
            return outcome
        return replace(outcome, curve=tuple((n, t, loss / 2) for n, t, loss in outcome.curve))

    algorithm = OmnivoreAlgorithm(32, hardware=HARDWARE, rounds=12)
    Tape().run(algorithm, never_there(surface(3)), drift)
    assert algorithm.best is not None and better(algorithm.best, first[0])
    won = [row["reason"] for row in algorithm.decisions() if row["verdict"] == "won"]
    assert any(name in reason for reason in won)


@pytest.mark.parametrize("seed", range(20))
def test_strange_outcomes_never_crash_and_never_win(seed: int) -> None:
    """A third of all outcomes are diverged, failed, nan, inf or empty."""

    def spoil(request: Request, outcome: Outcome, rng: np.random.Generator) -> Outcome:
        kind = rng.integers(0, 15)
        if kind > 4:
            return outcome
        return (
            Outcome(status="diverged", updates=3, seconds=1.0, loss=math.nan),
            Outcome(status="failed", reason="device 3 was lost"),
            replace(outcome, loss=math.inf, checkpoint_path=None),
            replace(outcome, loss=math.nan, curve=((1, math.nan, math.nan),)),
            Outcome(status="interrupted"),
        )[kind]

    algorithm = OmnivoreAlgorithm(8, rounds=4)
    tape = Tape().run(algorithm, never_there(surface(seed)), spoil, seed=seed)
    diverged: list[tuple[int, Strategy]] = []
    for request, outcome in zip(tape.requests, tape.outcomes, strict=True):
        for number, known in diverged:
            same = number == request.round and known.groups == request.strategy.groups
            assert not (
                same
                and request.strategy.learning_rate >= known.learning_rate
                and request.strategy.momentum >= known.momentum
            )
        cluster = outcome.status in ("failed", "interrupted")
        if not cluster and not (outcome.ok and math.isfinite(outcome.loss)):
            diverged.append((request.round, request.strategy))
    assert algorithm.ask() is None
    words = ("times", "row", "look for")
    assert algorithm.failure is None or any(word in algorithm.failure for word in words)


@pytest.mark.parametrize("seed", range(4))
def test_never_ends_on_a_diverging_choice_beside_a_cliff(seed: int) -> None:
    on = replace(surface(seed, L=2000), u_div=1.3)
    algorithm = OmnivoreAlgorithm(32, hardware=HARDWARE)
    game = play(algorithm, on, seed, 100 * on.best_fixed()[0])
    assert math.isfinite(game.seconds)
    assert algorithm.best is not None and on.step(algorithm.best) <= on.u_div


def test_when_everything_diverges_it_says_so_and_stops() -> None:
    on = all_diverge(np.random.default_rng(0), 2000)
    algorithm = OmnivoreAlgorithm(32, hardware=HARDWARE)
    Tape().run(algorithm, on, limit=200)
    assert algorithm.ask() is None and algorithm.best is None
    assert "every learning rate" in str(algorithm.failure)
    algorithm = OmnivoreAlgorithm(32)
    Tape().run(algorithm, on)
    assert algorithm.ask() is None and "diverged" in str(algorithm.failure)


def test_rates_below_the_grid_are_tried_before_giving_up() -> None:
    on = replace(surface(1), l1=1e-2)
    algorithm = OmnivoreAlgorithm(32, learning_rates=(1.0, 0.3), hardware=HARDWARE, rounds=0)
    Tape().run(algorithm, never_there(on))
    assert algorithm.failure is None and algorithm.best is not None
    assert algorithm.best.learning_rate < 0.1


def test_a_device_that_keeps_failing_ends_the_search_with_its_reason() -> None:
    algorithm = OmnivoreAlgorithm(4)
    lost = Outcome(status="failed", reason="device 3 was lost")
    Tape().run(algorithm, _for(4), lambda *_: lost)
    assert algorithm.ask() is None and "device 3 was lost" in str(algorithm.failure)


def test_no_seconds_is_a_sentence() -> None:
    algorithm = OmnivoreAlgorithm(4)
    Tape().run(algorithm, _for(4), lambda request, outcome, rng: replace(outcome, seconds=0.0))
    assert algorithm.ask() is None and "0.0 seconds" in str(algorithm.failure)


def test_curves_of_a_single_point_are_enough() -> None:
    """A plain trainable that reports once."""
    algorithm = OmnivoreAlgorithm(32, rounds=2)
    tape = Tape().run(
        algorithm, never_there(surface(1)), lambda request, outcome, rng: replace(outcome, curve=())
    )
    assert algorithm.failure is None and tape.requests[-1].kind == "train"


def test_a_single_momentum_is_kept() -> None:
    algorithm = OmnivoreAlgorithm(32, momenta=(0.9,), hardware=HARDWARE, rounds=8)
    tape = Tape().run(algorithm, never_there(surface(0)))
    assert {r.strategy.momentum for r in tape.requests} == {0.9}
    assert len({r.strategy.groups for r in tape.requests}) > 1


def test_a_given_point_that_learns_replaces_the_rate_race() -> None:
    on = surface(0)
    point = on.best_fixed(4)[1]
    algorithm = OmnivoreAlgorithm(32, points_to_evaluate=[point], hardware=HARDWARE)
    tape = Tape().run(algorithm, never_there(on), limit=20)
    assert tape.requests[0].strategy == point
    assert not any(
        r.reason == "learning rate" and r.strategy.learning_rate == 1.0 for r in tape.requests
    )


def test_maximising_is_minimising_the_negative() -> None:
    def negative(request: Request, outcome: Outcome, rng: np.random.Generator) -> Outcome:
        curve = tuple((n, t, -loss) for n, t, loss in outcome.curve)
        return replace(outcome, loss=-outcome.loss, curve=curve)

    on = never_there(surface(2))
    least = Tape().run(OmnivoreAlgorithm(32, hardware=HARDWARE, rounds=2), on)
    most = Tape().run(OmnivoreAlgorithm(32, hardware=HARDWARE, rounds=2, mode="max"), on, negative)
    assert [r.strategy for r in least.requests] == [r.strategy for r in most.requests]


@pytest.mark.parametrize(
    ("words", "match"),
    [
        ({"num_devices": 0}, "num_devices=0"),
        ({"num_devices": 2.0}, "num_devices"),
        ({"learning_rates": ()}, "learning_rates"),
        ({"momenta": ()}, "momenta"),
        ({"learning_rates": (0.1, -1.0)}, "learning_rate=-1.0"),
        ({"momenta": (1.0,)}, "momentum=1.0"),
        ({"probe_updates": 0}, "probe_updates"),
        ({"train_s": 0.0}, "train_s"),
        ({"rounds": -1}, "rounds"),
        ({"probe_share": 1.5}, "probe_share"),
        ({"mode": "median"}, "mode"),
        ({"points_to_evaluate": [Strategy(groups=3, learning_rate=0.1)]}, "groups=3"),
    ],
)
def test_bad_settings_are_refused_by_name(words: dict, match: str) -> None:
    with pytest.raises(ValueError, match=match):
        OmnivoreAlgorithm(**{"num_devices": 4, **words})
