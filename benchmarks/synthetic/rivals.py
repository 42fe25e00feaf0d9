"""Searches to compare ours with: Optuna's TPE and uniform random, over the same space.

They probe from the initial parameters for a fixed number of seconds, score a probe as ours does
(mean loss of its last third), and then train with the best probe's strategy from its state.
"""

from __future__ import annotations

import math
from typing import Any, Literal

import optuna

from omnivore_ray.search.scoring import tail_loss
from omnivore_ray.search.scripted import Script, ScriptedAlgorithm
from omnivore_ray.strategy import Request, Strategy

LEARNING_RATES = (1e-4, 1.0)
MOMENTA = (-0.6, 0.95)
WORST = 1e3


class Rival(ScriptedAlgorithm):
    """A sampler of Optuna's, then one train request.

    Args:
        sampler: "TPE" or "random".
        groups: The numbers of groups to choose from.
        probe_s: Seconds of a probe.
        probes: How many.
        seed: Of the sampler.
    """

    def __init__(
        self,
        sampler: Literal["TPE", "random"],
        groups: tuple[int, ...],
        probe_s: float,
        probes: int,
        seed: int,
    ) -> None:
        super().__init__()
        self._sampler, self._groups, self._seed = sampler, groups, seed
        self._probe_s, self._probes = probe_s, probes

    def _settings(self) -> dict[str, Any]:
        return {"sampler": self._sampler, "seed": self._seed, "probes": self._probes}

    def _plan(self) -> Script:
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        samplers = optuna.samplers
        sampler = (samplers.TPESampler if self._sampler == "TPE" else samplers.RandomSampler)(
            seed=self._seed
        )
        study = optuna.create_study(sampler=sampler)
        least, state = math.inf, None
        for _ in range(self._probes):
            trial = study.ask()
            strategy = Strategy(
                groups=2 ** trial.suggest_int("log2_groups", 0, len(self._groups) - 1),
                learning_rate=trial.suggest_float("learning_rate", *LEARNING_RATES, log=True),
                momentum=trial.suggest_float("momentum", *MOMENTA),
            )
            outcome = yield Request(kind="probe", strategy=strategy, budget_s=self._probe_s)
            score = tail_loss(outcome.curve, outcome.seconds).value if outcome.ok else WORST
            study.tell(trial, score)
            if score < least:
                least, state, self.best = score, outcome.checkpoint_path, strategy
        if self.best is not None:
            yield Request(kind="train", strategy=self.best, resume_from=state)
