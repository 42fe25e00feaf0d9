"""A search written as a script: a generator that yields requests and is sent their outcomes.

The script reads like prose, and its state is its past: `state_dict` holds the outcomes told so far,
and `load_state_dict` plays them to a fresh script. So a restored search asks exactly what the
uninterrupted one would have asked, whatever its phase.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Generator
from dataclasses import replace
from typing import Any

from omnivore_ray.strategy import Outcome, Request, Strategy

Script = Generator[Request, Outcome, None]
STATE_VERSION = 1
CURVE_POINTS = 60
COLUMNS = (
    "kind",
    "round",
    "groups",
    "learning_rate",
    "momentum",
    "resumed_from",
    "updates",
    "seconds",
    "score",
    "score_error",
    "predicted_seconds_per_update",
    "measured_seconds_per_update",
    "verdict",
    "reason",
)


class ScriptedAlgorithm(ABC):
    """Turns a script into an `Algorithm`; see `contract.Algorithm` for the public methods.

    `ask` repeats the live request until it is told. `tell` ignores a request that was told before
    and refuses one that was never asked. An outcome that ends the run (target or time limit) ends
    the search, and a finished search ignores everything.
    """

    def __init__(self, maximise: bool = False) -> None:
        self._maximise = maximise
        self._begin()

    def _begin(self) -> None:
        self.failure: str | None = None
        self.best: Strategy | None = None
        self._history: list[tuple[Request, Outcome]] = []
        self._rows: list[dict[str, Any]] = []
        self._script: Script | None = None
        self._live: Request | None = None

    @abstractmethod
    def _plan(self) -> Script:
        """The script: yields requests, is sent outcomes, returns when there is nothing to do."""

    @abstractmethod
    def _settings(self) -> dict[str, Any]:
        """What the search was built with, JSON-able; a state only loads into equal settings."""

    def _predicted_seconds_per_update(self, groups: int) -> float | None:
        """What the search expects an update to cost, before it is measured."""
        return None

    def ask(self) -> Request | None:
        if self._script is None:
            self._script = self._plan()
            self._live = next(self._script, None)
        return self._live

    def tell(self, request: Request, outcome: Outcome) -> None:
        """See `contract.Algorithm.tell`.

        Raises:
            ValueError: ``request`` is neither the live one nor one told before.
        """
        live = self.ask()
        if request != live:
            if live is None or any(request == told for told, _ in self._history):
                return
            raise ValueError(
                f"tell(request={request!r}): this was never asked; the live request is "
                f"{self._live!r}"
            )
        self._advance(request, condense(outcome, self._maximise))

    def _advance(self, request: Request, outcome: Outcome) -> None:
        """Sends an outcome to the script."""
        self._history.append((request, outcome))
        self._rows.append(self._row(request, outcome))
        assert self._script is not None
        if outcome.ends_run:
            self.best = self.best or request.strategy
            self._script.close()
            self._live = None
            return
        try:
            self._live = self._script.send(outcome)
        except StopIteration:
            self._live = None

    def decisions(self) -> list[dict[str, Any]]:
        return [dict(row) for row in self._rows]

    def state_dict(self) -> dict[str, Any]:
        return {
            "version": STATE_VERSION,
            "algorithm": type(self).__name__,
            "settings": self._settings(),
            "history": [
                {"request": request.to_config(), "outcome": outcome.to_json()}
                for request, outcome in self._history
            ],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """See `contract.Algorithm.load_state_dict`.

        Raises:
            ValueError: The state is of another version, algorithm or settings.
        """
        expected = self.state_dict()
        for key in ("version", "algorithm", "settings"):
            if state.get(key) != expected[key]:
                raise ValueError(
                    f"state[{key!r}]={state.get(key)!r} does not fit this search, which has "
                    f"{expected[key]!r}; build it as the saved one was built"
                )
        self._begin()
        for saved in state["history"]:
            request = self.ask()
            if request is None or request.to_config() != saved["request"]:
                raise ValueError(
                    f"state['history'] holds the request {saved['request']!r} where this search "
                    f"asks {request!r}: it was saved by another version"
                )
            self._advance(request, Outcome.from_json(saved["outcome"]))

    def __getstate__(self) -> dict[str, Any]:
        kept = {name: value for name, value in vars(self).items() if name not in _REPLAYED}
        return {"fields": kept, "state": self.state_dict()}

    def __setstate__(self, saved: dict[str, Any]) -> None:
        vars(self).update(saved["fields"])
        self._begin()
        self.load_state_dict(saved["state"])

    def _row(self, request: Request, outcome: Outcome) -> dict[str, Any]:
        strategy = request.strategy
        return {
            "kind": request.kind,
            "round": request.round,
            "groups": strategy.groups,
            "learning_rate": strategy.learning_rate,
            "momentum": strategy.momentum,
            "resumed_from": request.resume_from,
            "updates": outcome.updates,
            "seconds": outcome.seconds,
            "score": outcome.loss,
            "score_error": math.nan,
            "predicted_seconds_per_update": self._predicted_seconds_per_update(strategy.groups),
            "measured_seconds_per_update": outcome.seconds_per_update,
            "verdict": outcome.status,
            "reason": "; ".join(text for text in (request.reason, outcome.reason) if text),
        }


_REPLAYED = ("failure", "best", "_history", "_rows", "_script", "_live")


def condense(outcome: Outcome, maximise: bool = False) -> Outcome:
    """The outcome with a clean curve of at most 60 points, and diverged if its loss is not finite.

    Points that are not finite or do not advance are dropped, neighbours are merged. An outcome
    without a curve gets the one point that its totals make; with ``maximise`` losses change sign.
    """
    if maximise:
        curve = tuple((n, at_s, -loss) for n, at_s, loss in outcome.curve)
        outcome = replace(outcome, loss=-outcome.loss, curve=curve)
    points = []
    updates, seconds = 0, 0.0
    for n, at_s, loss in outcome.curve:
        if n > updates and math.isfinite(at_s) and at_s >= seconds and math.isfinite(loss):
            points.append((int(n), float(at_s), float(loss)))
            updates, seconds = n, at_s
    if not points and outcome.updates > 0 and math.isfinite(outcome.loss):
        points = [(outcome.updates, float(outcome.seconds), float(outcome.loss))]
    completed = outcome.status == "completed"
    if completed and outcome.updates > 0 and not outcome.seconds > 0:
        reason = f"it reported {outcome.updates} updates in {outcome.seconds} seconds"
        return replace(outcome, status="failed", checkpoint_path=None, curve=(), reason=reason)
    if completed and not (points and math.isfinite(outcome.loss)):
        reason = outcome.reason or f"loss is {outcome.loss}"
        outcome = replace(outcome, status="diverged", checkpoint_path=None, reason=reason)
    every = math.ceil(len(points) / CURVE_POINTS) or 1
    merged = []
    before = 0
    for start in range(0, len(points), every):
        part = points[start : start + every]
        ends = [n for n, _, _ in part]
        weights = [n - m for n, m in zip(ends, [before, *ends], strict=False)]
        loss = sum(w * p[2] for w, p in zip(weights, part, strict=True)) / sum(weights)
        merged.append((part[-1][0], part[-1][1], loss))
        before = ends[-1]
    return replace(outcome, curve=tuple(merged), metrics={})
