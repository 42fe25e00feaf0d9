"""The search that does not search: one strategy, one train request."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from omnivore_ray.search.scripted import Script, ScriptedAlgorithm
from omnivore_ray.strategy import Request, Strategy


class FixedAlgorithm(ScriptedAlgorithm):
    """Trains one given strategy until the run's own target or time limit ends it.

    Args:
        strategy: What to train with.
    """

    def __init__(self, strategy: Strategy) -> None:
        super().__init__()
        self._strategy = strategy

    def _settings(self) -> dict[str, Any]:
        return {"strategy": asdict(self._strategy)}

    def _plan(self) -> Script:
        self.best = self._strategy
        outcome = yield Request(
            kind="train", strategy=self._strategy, reason="the strategy was given"
        )
        if not outcome.ok:
            self.failure = (
                f"training with {self._strategy} {outcome.status}"
                f" after {outcome.updates} updates: {outcome.reason or 'no reason was given'}"
            )
