"""Our search: a lean cold start, then long stretches with a race between them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from omnivore_ray.efficiency.hardware import HardwareModel
from omnivore_ray.search.cold_start import ColdStart
from omnivore_ray.search.probing import Prober
from omnivore_ray.search.published import PublishedAlgorithm
from omnivore_ray.search.rounds import Rounds
from omnivore_ray.search.scripted import Script, ScriptedAlgorithm
from omnivore_ray.strategy import Strategy

LEARNING_RATES = (1.0, 0.3, 0.1, 0.03, 0.01, 0.003, 0.001, 0.0003, 0.0001)
MOMENTA = (0.0, 0.3, 0.6)


class OmnivoreAlgorithm(ScriptedAlgorithm):
    """ours"""

    def __init__(
        self,
        num_devices: int,
        learning_rates: Sequence[float] = LEARNING_RATES,
        momenta: Sequence[float] = MOMENTA,
        probe_updates: int = 80,
        train_s: float | None = None,
        rounds: int | None = None,
        probe_share: float = 0.1,
        points_to_evaluate: Sequence[Strategy] | None = None,
        mode: str = "min",
        hardware: HardwareModel | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__()
        self._num_devices = num_devices
        self._learning_rates, self._momenta = tuple(learning_rates), tuple(momenta)
        self._probe_updates, self._train_s, self._rounds = probe_updates, train_s, rounds
        self._probe_share, self._hardware = probe_share, hardware
        self._points = tuple(points_to_evaluate or ())
        self._prober: Prober | None = None

    published = PublishedAlgorithm

    def _settings(self) -> dict[str, Any]:
        return {
            "num_devices": self._num_devices,
            "learning_rates": list(self._learning_rates),
            "momenta": list(self._momenta),
            "probe_updates": self._probe_updates,
            "train_s": self._train_s,
            "rounds": self._rounds,
            "probe_share": self._probe_share,
            "points_to_evaluate": [asdict(point) for point in self._points],
        }

    def _predicted_seconds_per_update(self, groups: int) -> float | None:
        return None if self._prober is None else self._prober.predicted(groups)

    def _plan(self) -> Script:
        prober = Prober(self._rows, self._num_devices, self._probe_updates, self._hardware)
        self._prober = prober
        start = ColdStart(prober, self._learning_rates, self._momenta, self._points)
        yield from self._follow(start)
        if self.best is None:
            self.failure = "all diverged"
            return
        rounds = Rounds(
            prober,
            self.best,
            start.leader(),
            probe_share=self._probe_share,
            train_s=self._train_s,
            rounds=self._rounds,
        )
        yield from self._follow(rounds)
        self.failure = rounds.failure

    def _follow(self, phase: ColdStart | Rounds) -> Script:
        """Runs a phase, and recommends after every step what it has found so far."""
        script = phase.run()
        outcome = None
        while True:
            try:
                request = next(script) if outcome is None else script.send(outcome)
            except StopIteration:
                self.best = phase.best
                return
            self.best = phase.best
            outcome = yield request
