"""The Ray Tune side of a search: a thin adapter over ``ask`` and ``tell``.

Ray facts it honours: parameters are called ``trial_id``; None is returned only while a trial is
live (the controller would block); one live trial at a time, whatever Tune asks for; learning
happens when a trial completes; unknown, repeated and errored completions are tolerated; its whole
state is JSON, and restoring it never fails silently into a fresh start.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ray.tune.search import Searcher

from omnivore_ray.search.algorithm import LEARNING_RATES, MOMENTA, OmnivoreAlgorithm
from omnivore_ray.search.contract import Algorithm
from omnivore_ray.search.main_line import Ended, main_line
from omnivore_ray.strategy import Outcome, Request, Strategy

_STATE_VERSION = 1
#: Key of a trial's last result under which our trainable reports the whole outcome, as JSON.
OUTCOME_KEY = "outcome"


class AlgorithmSearch(Searcher):
    """Drives any trainable with an algorithm.

    Args:
        algorithm: What to ask and tell.
        metric: Key of the results to learn from, when the trainable is not ours.
        mode: "min" or "max".
    """

    def __init__(self, algorithm: Algorithm, metric: str = "loss", mode: str = "min") -> None:
        _check_metric(metric, mode)
        super().__init__(metric=metric, mode=mode)
        self._metric: str = metric
        self._mode: str = mode
        self.algorithm = algorithm
        #: Requests with an outcome, in order: trial_id, resume_from, kind, status,
        #: checkpoint_path, loss.
        self.finished: list[dict[str, Any]] = []
        self._live: dict[str, Request] = {}
        self._curves: dict[str, list[tuple[int, float, float]]] = {}

    # -- Tune's calls -----------------------------------------------------------------------------

    def set_search_properties(
        self, metric: str | None, mode: str | None, config: dict[str, Any], **spec: Any
    ) -> bool:
        """Takes over TuneConfig's metric and mode."""
        _check_metric(metric or self._metric, mode or self._mode)
        owned = sorted(set(config or {}) & set(Request.config_keys()))
        if owned:
            raise ValueError(
                f"param_space sets {', '.join(map(repr, owned))}, which this search chooses; "
                "leave it out, and give learning_rates= or momenta= to OmnivoreSearch instead"
            )
        self._metric, self._mode = metric or self._metric, mode or self._mode
        return True

    def set_max_concurrency(self, max_concurrent: int) -> bool:
        """One trial at a time is all we ever start, so any limit is kept."""
        return True

    def suggest(self, trial_id: str) -> Any:
        """The next request as a config; None while one is live; FINISHED at the end."""
        if trial_id in self._live:
            return self._live[trial_id].to_config()
        if self._live:
            return None
        request = self.algorithm.ask()
        if request is None:
            return Searcher.FINISHED
        self._live[trial_id] = request
        self._curves[trial_id] = []
        return request.to_config()

    def on_trial_result(self, trial_id: str, result: dict[str, Any]) -> None:
        """Notes a point of the trial's curve; nothing is learnt yet."""
        if trial_id in self._live:
            self._note(trial_id, result)

    def on_trial_complete(
        self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False
    ) -> None:
        """Tells the algorithm what became of the trial."""
        request = self._live.pop(trial_id, None)
        if request is None:
            return
        if result is not None:
            self._note(trial_id, result)
        outcome = self._outcome(tuple(self._curves.pop(trial_id, ())), result, error)
        self.finished.append(
            {
                "trial_id": trial_id,
                "resume_from": request.resume_from,
                "kind": request.kind,
                "status": outcome.status,
                "checkpoint_path": outcome.checkpoint_path,
                "loss": outcome.loss if math.isfinite(outcome.loss) else None,
            }
        )
        self.algorithm.tell(request, outcome)

    def save(self, checkpoint_path: str) -> None:
        """Writes the whole state as JSON."""
        state = {
            "version": _STATE_VERSION,
            "metric": self._metric,
            "mode": self._mode,
            "algorithm": self.algorithm.state_dict(),
            "live": {trial_id: r.to_config() for trial_id, r in self._live.items()},
            "curves": self._curves,
            "finished": self.finished,
        }
        Path(checkpoint_path).write_text(json.dumps(state))

    def restore(self, checkpoint_path: str) -> None:
        """Goes on where `save` was.

        Raises:
            ValueError: The file is of another version.
        """
        state = json.loads(Path(checkpoint_path).read_text())
        if state["version"] != _STATE_VERSION:
            raise ValueError(f"{checkpoint_path} is of version {state['version']}")
        self._metric, self._mode = state["metric"], state["mode"]
        self.algorithm.load_state_dict(state["algorithm"])
        self._live = {t: Request.from_config(config) for t, config in state["live"].items()}
        self._curves = {t: [tuple(p) for p in points] for t, points in state["curves"].items()}
        self.finished = state["finished"]

    @property
    def live(self) -> Mapping[str, Request]:
        """Requests that were suggested and have no outcome yet, by trial id."""
        return dict(self._live)

    def kept(self) -> list[int]:
        """Numbers of the finished requests that led to the final state, in order."""
        return main_line(
            [
                Ended(
                    end_state=row["checkpoint_path"],
                    start_state=row["resume_from"],
                    kind=row["kind"],
                    status=row["status"],
                    loss=row["loss"],
                )
                for row in self.finished
            ]
        )

    # -- inside -----------------------------------------------------------------------------------

    def _note(self, trial_id: str, result: Mapping[str, Any]) -> None:
        if self._metric not in result:
            return
        value = float(result[self._metric])
        updates = int(result.get("updates", result.get("training_iteration", 0)))
        seconds = float(result.get("seconds", result.get("time_total_s", 0.0)))
        point = (updates, seconds, value if self._mode == "min" else -value)
        points = self._curves[trial_id]
        if not points or points[-1][0] < updates:
            points.append(point)

    def _outcome(
        self,
        curve: tuple[tuple[int, float, float], ...],
        result: Mapping[str, Any] | None,
        error: bool,
    ) -> Outcome:
        if error or result is None:
            return Outcome(status="failed", curve=curve, reason="the trial failed")
        if OUTCOME_KEY in result:
            outcome = Outcome.from_json(json.loads(result[OUTCOME_KEY]))
            if self._metric == "loss" or not curve or not outcome.ok:
                return outcome
            return replace(outcome, curve=_since_start(curve, outcome), loss=curve[-1][2])
        if not curve:
            return Outcome(status="failed", reason=f"the trial never reported {self._metric!r}")
        updates, seconds, value = curve[-1]
        if not math.isfinite(value):
            return Outcome(
                status="diverged", updates=updates, seconds=seconds, loss=value, curve=curve,
                reason=f"{self._metric} was {value}",
            )  # fmt: skip
        path = result.get("checkpoint_path")
        return Outcome(
            status="completed", updates=updates, seconds=seconds, loss=value, curve=curve,
            checkpoint_path=None if path is None else str(path),
        )  # fmt: skip


class OmnivoreSearch(AlgorithmSearch):
    """The optimizer as a Tune search algorithm, for any trainable that takes its config keys.

    It suggests ``groups``, ``learning_rate``, ``momentum``, ``kind`` ("probe" or "train"),
    ``round``, ``budget_updates`` or ``budget_s``, ``resume_from`` and ``reason``. A trainable
    reports its metric and, if it can, ``updates``, ``seconds`` and ``checkpoint_path``, which
    comes back as ``resume_from``; it ends when its budget is used up. Where ``updates`` or
    ``seconds`` are not reported, Tune's own count of reports and clock stand in.

    Give TuneConfig ``num_samples=-1`` (the search ends itself) and ``reuse_actors=True``.

    Args:
        num_devices: Devices the trainable has: the largest number of groups.
        metric: Key of the results to learn from.
        mode: "min" or "max".
        learning_rates: Where the search begins; it goes on between and beyond them.
        momenta: Likewise.
        probe_updates: Updates of a probe.
        train_s: Seconds of a long stretch; None lets it grow with what probes cost.
        rounds: Re-optimisations after the cold start; None goes on until the run ends.
        points_to_evaluate: Strategies to try first, as `Strategy` or dicts of its fields.
        seed: Of the run.

    Raises:
        ValueError: A value is out of range.
    """

    def __init__(
        self,
        num_devices: int,
        metric: str = "loss",
        mode: str = "min",
        *,
        learning_rates: Sequence[float] = LEARNING_RATES,
        momenta: Sequence[float] = MOMENTA,
        probe_updates: int = 80,
        train_s: float | None = None,
        rounds: int | None = None,
        points_to_evaluate: Sequence[Strategy | Mapping[str, Any]] | None = None,
        seed: int = 0,
    ) -> None:
        points = [
            point if isinstance(point, Strategy) else Strategy(**point)
            for point in points_to_evaluate or ()
        ]
        algorithm = OmnivoreAlgorithm(
            num_devices,
            learning_rates=learning_rates,
            momenta=momenta,
            probe_updates=probe_updates,
            train_s=train_s,
            rounds=rounds,
            points_to_evaluate=points,
            seed=seed,
        )
        super().__init__(algorithm, metric, mode)


def _since_start(
    curve: tuple[tuple[int, float, float], ...], outcome: Outcome
) -> tuple[tuple[int, float, float], ...]:
    """Our trainable reports the run's totals; a curve counts from the request's start."""
    updates, seconds = curve[-1][0] - outcome.updates, curve[-1][1] - outcome.seconds
    return tuple((u - updates, s - seconds, value) for u, s, value in curve)


def _check_metric(metric: Any, mode: Any) -> None:
    if not isinstance(metric, str) or not metric:
        raise ValueError(f"metric={metric!r}: give the name of one metric; lists are not supported")
    if mode not in ("min", "max"):
        raise ValueError(f"mode={mode!r}: give 'min' or 'max'")
