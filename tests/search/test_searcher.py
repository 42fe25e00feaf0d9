"""What Ray Tune's searchers are held to, held for ours; no Ray is started."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from ray.tune.search import ConcurrencyLimiter, Searcher

from omnivore_ray import OmnivoreSearch, Strategy
from omnivore_ray.search.fixed import FixedAlgorithm
from omnivore_ray.search.searcher import AlgorithmSearch
from omnivore_ray.strategy import Outcome


class SearcherContract:
    """Reusable: subclass it and give `make`, a fresh searcher with metric "loss", mode "min"."""

    make: Callable[[], Searcher]

    def quality(self, config: Mapping[str, Any]) -> float:
        """A smooth surface with its best at a learning rate of 0.05."""
        return 0.1 + abs(math.log10(config["learning_rate"] / 0.05)) + 0.01 * config["groups"]

    def play(self, searcher: Searcher, trials: int, start: int = 0) -> list[dict[str, Any]]:
        """Runs trials to their end, each with three reports."""
        configs = []
        for number in range(start, start + trials):
            trial_id = f"trial-{number}"
            config = searcher.suggest(trial_id)
            if config == Searcher.FINISHED:
                break
            assert isinstance(config, dict)
            configs.append({k: v for k, v in config.items() if k not in ("reason",)})
            self.finish(searcher, trial_id, config)
        return configs

    def finish(self, searcher: Searcher, trial_id: str, config: Mapping[str, Any]) -> None:
        result: dict[str, Any] = {}
        for report in range(1, 31):
            result = {
                "loss": self.quality(config) + 1.0 / report,
                "training_iteration": 3 * report,
                "time_total_s": report / config["groups"],
                "checkpoint_path": f"/state/{trial_id}",
            }
            searcher.on_trial_result(trial_id, result)
        searcher.on_trial_complete(trial_id, result=result)

    def test_it_suggests_configs_until_it_is_finished_and_nothing_twice_at_once(self):
        searcher = self.make()
        first = searcher.suggest("a")
        assert isinstance(first, dict)
        assert searcher.suggest("b") is None  # one is live
        assert searcher.suggest("a") == first
        self.finish(searcher, "a", first)
        assert isinstance(searcher.suggest("c"), dict)

    def test_none_is_never_returned_while_nothing_is_live(self):
        searcher = self.make()
        for number in range(40):
            config = searcher.suggest(f"t{number}")
            assert config is not None
            if config == Searcher.FINISHED:
                break
            self.finish(searcher, f"t{number}", config)

    @pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
    def test_metrics_that_are_no_numbers_are_survived_and_never_win(self, value):
        searcher = self.make()
        config = searcher.suggest("bad")
        searcher.on_trial_result("bad", {"loss": value, "training_iteration": 1})
        searcher.on_trial_complete("bad", {"loss": value, "training_iteration": 1})
        following = searcher.suggest("next")
        assert following == Searcher.FINISHED or following["resume_from"] is None
        assert config is not None

    def test_errors_and_missing_results_are_survived(self):
        searcher = self.make()
        searcher.suggest("a")
        searcher.on_trial_complete("a", result=None, error=True)
        searcher.suggest("b")
        searcher.on_trial_complete("b")
        assert searcher.suggest("c") is not None

    def test_a_trial_that_never_reports_the_metric_is_survived(self):
        searcher = self.make()
        searcher.suggest("a")
        searcher.on_trial_complete("a", {"other": 1.0, "training_iteration": 1})
        assert searcher.suggest("b") is not None

    def test_unknown_late_and_repeated_calls_change_nothing(self):
        searcher, other = self.make(), self.make()
        self.play(searcher, 3)
        self.play(other, 3)
        searcher.on_trial_complete("never-suggested", {"loss": 0.0, "training_iteration": 9})
        searcher.on_trial_result("trial-1", {"loss": -9.0, "training_iteration": 99})
        searcher.on_trial_complete("trial-1", {"loss": -9.0, "training_iteration": 99})
        assert searcher.suggest("x") == other.suggest("x")

    def test_five_saved_five_more_equal_ten_uninterrupted(self, tmp_path):
        whole = self.play(self.make(), 10)
        first = self.make()
        head = self.play(first, 5)
        first.save(str(tmp_path / "state"))
        second = self.make()
        second.restore(str(tmp_path / "state"))
        assert head + self.play(second, 5, start=5) == whole

    def test_a_live_trial_and_one_that_never_finished_survive_a_restore(self, tmp_path):
        searcher = self.make()
        self.play(searcher, 2)
        live = searcher.suggest("live")
        searcher.save(str(tmp_path / "state"))
        restored = self.make()
        restored.restore(str(tmp_path / "state"))
        assert restored.suggest("another") is None
        assert restored.suggest("live") == live
        self.finish(restored, "live", live)
        assert restored.suggest("after") is not None

    def test_the_state_is_plain_json(self, tmp_path):
        searcher = self.make()
        self.play(searcher, 4)
        searcher.save(str(tmp_path / "state"))
        json.loads((tmp_path / "state").read_text(), parse_constant=pytest.fail)

    def test_limits_of_others_are_kept(self):
        limited = ConcurrencyLimiter(self.make(), max_concurrent=3)
        assert limited.suggest("a") is not None
        assert limited.suggest("b") is None
        assert self.make().set_max_concurrency(5)

    def test_properties_from_tune_are_taken_over(self):
        searcher = self.make()
        assert searcher.set_search_properties("accuracy", "max", {"other": 3})
        assert (searcher.metric, searcher.mode) == ("accuracy", "max")
        for metric, mode, named in [(["a", "b"], "min", "lists"), ("a", "low", "mode='low'")]:
            with pytest.raises(ValueError, match=named):
                searcher.set_search_properties(metric, mode, {})

    def test_the_keys_it_chooses_cannot_be_a_domain(self):
        for key in ("groups", "learning_rate", "momentum", "budget_s"):
            with pytest.raises(ValueError, match=key):
                self.make().set_search_properties("loss", "min", {key: 3})


class TestOmnivoreSearch(SearcherContract):
    def make(self) -> OmnivoreSearch:
        return OmnivoreSearch(num_devices=8, probe_updates=80, rounds=3)

    def test_a_point_to_evaluate_is_tried_first(self):
        searcher = OmnivoreSearch(
            num_devices=8,
            points_to_evaluate=[{"groups": 4, "learning_rate": 0.07, "momentum": 0.2}],
        )
        configs = self.play(searcher, 5)
        assert any(config["learning_rate"] == 0.07 for config in configs)

    @pytest.mark.parametrize(
        ("arguments", "named"),
        [
            ({"num_devices": 0}, "num_devices=0"),
            ({"num_devices": 2, "metric": ["a", "b"]}, "lists are not supported"),
            ({"num_devices": 2, "mode": "best"}, "mode='best'"),
            ({"num_devices": 2, "learning_rates": []}, r"learning_rates=\[\]"),
            ({"num_devices": 2, "momenta": []}, r"momenta=\[\]"),
            ({"num_devices": 2, "learning_rates": [-1.0]}, "learning_rate=-1.0"),
            ({"num_devices": 2, "probe_updates": 0}, "probe_updates=0"),
            ({"num_devices": 2, "train_s": 0}, "train_s=0"),
        ],
    )
    def test_illegal_arguments_are_named(self, arguments, named):
        with pytest.raises(ValueError, match=named):
            OmnivoreSearch(**arguments)

    def test_a_metric_to_maximise_is_learnt_the_right_way_round(self):
        searcher = OmnivoreSearch(num_devices=1, metric="score", mode="max", rounds=1)
        rates = []
        for number in range(60):
            config = searcher.suggest(f"t{number}")
            if config == Searcher.FINISHED:
                break
            rates.append(config["learning_rate"])
            result: dict[str, Any] = {}
            for report in range(1, 31):
                score = -self.quality(config) - 1.0 / report
                result = {"score": score, "training_iteration": 3 * report, "time_total_s": report}
                searcher.on_trial_result(f"t{number}", result)
            searcher.on_trial_complete(f"t{number}", result)
        assert rates[-1] == pytest.approx(0.05, rel=1.5)


def finished(searcher: AlgorithmSearch, *rows: tuple[Any, ...]) -> AlgorithmSearch:
    names = ("trial_id", "resume_from", "kind", "status", "checkpoint_path", "loss")
    searcher.finished = [dict(zip(names, row, strict=True)) for row in rows]
    return searcher


def test_the_kept_requests_are_those_that_led_to_the_final_state():
    search = AlgorithmSearch(FixedAlgorithm(Strategy(learning_rate=0.1)))
    assert search.kept() == []
    probes = [
        ("a", None, "probe", "diverged", None, None),
        ("b", None, "probe", "completed", "B", 0.5),
        ("c", None, "probe", "completed", "C", 0.7),
        ("d", "B", "train", "completed", "D", 0.1),
    ]
    assert finished(search, *probes).kept() == [1, 3]
    # the end of the run cuts a probe short: the state it started from is the final one
    cut = ("e", "D", "probe", "out_of_time", "E", 0.2)
    assert finished(search, *probes, cut).kept() == [1, 3]
    hit = ("e", "D", "probe", "target_reached", "E", 0.2)
    assert finished(search, *probes, hit).kept() == [1, 3, 4]
    # and within a cold start, where the best probe stands for the run
    fresh = ("f", None, "probe", "out_of_time", "F", None)
    assert finished(search, *probes[:3], fresh).kept() == [1]


def test_our_trainables_whole_outcome_is_what_the_algorithm_is_told():
    search = AlgorithmSearch(FixedAlgorithm(Strategy(learning_rate=0.1)))
    search.suggest("a")
    outcome = Outcome(status="out_of_time", updates=3, seconds=1.5, loss=0.2, checkpoint_path="C")
    search.on_trial_complete("a", {"loss": 9.0, "outcome": json.dumps(outcome.to_json())})
    (row,) = search.algorithm.decisions()
    assert (row["updates"], row["seconds"], row["verdict"]) == (3, 1.5, "out_of_time")
    assert search.finished[0]["checkpoint_path"] == "C"
    assert search.suggest("b") == Searcher.FINISHED
