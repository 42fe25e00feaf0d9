"""Our search: a lean cold start, then long stretches of training with a race between them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, Literal

from omnivore_ray.efficiency.hardware import HardwareModel
from omnivore_ray.search.cold_start import ColdStart
from omnivore_ray.search.grids import group_ladder
from omnivore_ray.search.probing import GivesUp, Prober
from omnivore_ray.search.published import PublishedAlgorithm
from omnivore_ray.search.rounds import Rounds
from omnivore_ray.search.scripted import Script, ScriptedAlgorithm
from omnivore_ray.strategy import Strategy

LEARNING_RATES = (1.0, 0.3, 0.1, 0.03, 0.01, 0.003, 0.001, 0.0003, 0.0001)
MOMENTA = (0.0, 0.3, 0.6)


class OmnivoreAlgorithm(ScriptedAlgorithm):
    """Searches groups, learning rate and momentum while it trains; see `contract.Algorithm`.

    `cold_start` and `rounds` tell how. The same outcomes always give the same requests: nothing is
    drawn at random, so ``seed`` is only part of the settings that a saved state must match.

    Args:
        num_devices: N; groups are powers of two below it, and N itself.
        learning_rates: Where the search begins; it goes on between and beyond them.
        momenta: Likewise: it begins at the middle one and steps by their distance, into negative
            values too. A single momentum is kept as it is.
        probe_updates: Updates of a probe, at the slowest strategy of its race.
        train_s: Seconds of each long stretch; None lets them grow with the time trained and with
            what probes cost.
        rounds: Re-optimisations after the cold start; None goes on until the run ends.
        probe_share: Probes' share of the time after the cold start, at most; it decides how long
            a stretch is, so it has no say when ``train_s`` is given.
        points_to_evaluate: Strategies to try first; the learning-rate race is skipped if one of
            them learns.
        mode: "max" when the loss told is a metric to maximise.
        hardware: Predicts seconds per update; None fits it to three timing runs.
        seed: Of the run.

    Raises:
        ValueError: A value is out of range.
    """

    published = PublishedAlgorithm

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
        mode: Literal["min", "max"] = "min",
        hardware: HardwareModel | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__(maximise=mode == "max")
        check_grids(num_devices, learning_rates, momenta)
        for name, value, least in (
            ("probe_updates", probe_updates, 1),
            ("rounds", rounds, 0),
            ("seed", seed, 0),
        ):
            if value is not None and (not isinstance(value, int) or value < least):
                raise ValueError(f"{name}={value!r}: give a whole number of at least {least}")
        if train_s is not None and not train_s > 0:
            raise ValueError(f"train_s={train_s!r}: give more than 0 seconds, or None")
        if not 0 < probe_share < 1:
            raise ValueError(f"probe_share={probe_share!r}: give a share between 0 and 1")
        if mode not in ("min", "max"):
            raise ValueError(f"mode={mode!r}: give 'min' or 'max'")
        points = tuple(points_to_evaluate or ())
        ladder = group_ladder(num_devices)
        for point in points:
            if point.groups not in ladder:
                raise ValueError(
                    f"points_to_evaluate: groups={point.groups} of ({point}) is not one of {ladder}"
                )
        self._num_devices, self._probe_updates, self._hardware = (
            num_devices,
            probe_updates,
            hardware,
        )
        self._learning_rates, self._momenta, self._points = (
            tuple(learning_rates),
            tuple(momenta),
            points,
        )
        self._train_s, self._rounds, self._probe_share = train_s, rounds, probe_share
        self._mode, self._seed = mode, seed
        self._prober: Prober | None = None

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
            "mode": self._mode,
            "hardware": repr(self._hardware),
            "seed": self._seed,
        }

    def _predicted_seconds_per_update(self, groups: int) -> float | None:
        return None if self._prober is None else self._prober.predicted(groups)

    def _plan(self) -> Script:
        prober = Prober(self._rows, self._num_devices, self._probe_updates, self._hardware)
        self._prober = prober
        start = ColdStart(prober, self._learning_rates, self._momenta, self._points)
        try:
            yield from self._follow(start)
            assert self.best is not None
            checkpoint, path_s = start.furthest()
            rounds = Rounds(
                prober,
                self.best,
                checkpoint=checkpoint,
                path_s=path_s,
                tune_momentum=len(set(self._momenta)) > 1,
                probe_share=self._probe_share,
                train_s=self._train_s,
                rounds=self._rounds,
            )
            yield from self._follow(rounds)
        except GivesUp as reason:
            self.failure = str(reason)

    def _follow(self, phase: ColdStart | Rounds) -> Script:
        """Runs a phase, and recommends after every outcome what it has found so far."""
        script = phase.run()
        request = next(script, None)
        while request is not None:
            self.best = phase.best
            outcome = yield request
            try:
                request = script.send(outcome)
            except StopIteration:
                break
        self.best = phase.best


def check_grids(
    num_devices: int, learning_rates: Sequence[float], momenta: Sequence[float]
) -> None:
    """Refuses what no search can begin with.

    Raises:
        ValueError: No devices, an empty grid, or a value that no optimizer takes.
    """
    if isinstance(num_devices, bool) or not isinstance(num_devices, int) or num_devices < 1:
        raise ValueError(f"num_devices={num_devices!r}: give a whole number of at least 1")
    for name, grid in (("learning_rates", learning_rates), ("momenta", momenta)):
        if len(grid) == 0:
            raise ValueError(f"{name}={grid!r}: give at least one value")
    for rate in learning_rates:
        for momentum in momenta:
            Strategy(learning_rate=rate, momentum=momentum)
