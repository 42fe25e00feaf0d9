"""The trade-off table: for each number of groups its pace, its need of updates, and its time.

Every g is tuned by itself: one seed runs a small grid of learning rates and momenta, the settings
within 30 % of the best run the other seeds (counts of one setting differ by 5-12 % from seed to
seed), and the least mean wins. A run is cut off once it takes 1.5 times the best so far. All runs
are cached, so that a table can be resumed, or be made again with more seeds.
"""

from __future__ import annotations

import math
import statistics
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from omnivore_ray.efficiency.convergence import (
    hardware_efficiency_penalty,
    statistical_efficiency_penalty,
)
from omnivore_ray.errors import OmnivoreError
from omnivore_ray.search.grids import group_ladder
from omnivore_ray.simulate.cache import Cache, fingerprint
from omnivore_ray.simulate.cluster import VirtualCluster
from omnivore_ray.simulate.fleet import VirtualFleet
from omnivore_ray.simulate.run import simulate
from omnivore_ray.simulate.timing import timing_request
from omnivore_ray.strategy import Request, Strategy
from omnivore_ray.workload import Target, Workload

#: From the middle outwards: what never arrives runs to the limit unless something has arrived.
LEARNING_RATES = (0.03, 0.1, 0.01, 0.3, 0.003, 1.0)
#: The first is the baselines'. The order decides what is cut off where, and so what is cached.
MOMENTA = (0.9, 0.6, 0.3, 0.0, -0.3)
SEEDS = (0, 1, 2)

_CUT_OFF = 1.5
_CONTENDERS = 1.3
_CONTENDERS_CUT_OFF = 3.0
_TIMING_UPDATES = 400


@dataclass(frozen=True, kw_only=True, slots=True)
class Tuned:
    """The best setting found for one number of groups.

    Attributes:
        strategy: It; None when no setting reaches the target.
        updates: Mean updates to the target over the seeds; inf when not all reach it.
        updates_sd: Their standard deviation; nan with one seed.
        seconds: Mean virtual seconds to the target.
        seconds_sd: Their standard deviation.
    """

    strategy: Strategy | None
    updates: float = math.inf
    updates_sd: float = math.nan
    seconds: float = math.inf
    seconds_sd: float = math.nan


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """One line of the table.

    Attributes:
        groups: g.
        seconds_per_update: HE(g), of a run without gradients.
        hardware_penalty: HE(g) / HE(1).
        statistical_penalty: SE(g) / SE(1).
        tuned: The best setting and what it needs: SE(g) and the time to the target.
    """

    groups: int
    seconds_per_update: float
    hardware_penalty: float
    statistical_penalty: float
    tuned: Tuned


@dataclass(frozen=True, kw_only=True, slots=True)
class Auto:
    """What ``strategy="auto"`` made of it, for one seed.

    Attributes:
        seed: Of the run.
        seconds: Virtual seconds to the target, search included; inf when not reached.
        search_s: Of these, spent on probes that did not lead to the final state.
        strategy: The one that trained last; None when the search gave up.
    """

    seed: int
    seconds: float
    search_s: float
    strategy: Strategy | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Table:
    """All of it.

    Attributes:
        rows: One a number of groups, rising.
        autos: One a seed.
        synchronous: g = 1 with momentum 0.9 and its best learning rate.
        asynchronous: g = N, likewise.
    """

    rows: tuple[Row, ...]
    autos: tuple[Auto, ...]
    synchronous: Tuned
    asynchronous: Tuned

    def to_json(self) -> dict[str, Any]:
        """A JSON object; what is not a finite number is null."""
        content: dict[str, Any] = _finite_only(asdict(self))
        return content


def make_table(
    workload: Workload,
    cluster: VirtualCluster,
    *,
    until: Target,
    time_limit_s: float,
    folder: Path | str,
    learning_rates: Sequence[float] = LEARNING_RATES,
    momenta: Sequence[float] = MOMENTA,
    seeds: Sequence[int] = SEEDS,
    watch: Callable[[str], None] | None = None,
) -> Table:
    """Tunes every number of groups, then runs the optimizer and the two baselines.

    Args:
        workload: What to train. Validated only if the target is one of its metrics.
        cluster: Where.
        until: The target.
        time_limit_s: Virtual seconds that no run exceeds.
        folder: Of the cached runs.
        learning_rates: The likely ones first.
        momenta: The first is the baselines'.
        seeds: At least one.
        watch: Told what is run next, in words.

    Raises:
        ValueError: The target is none of the workload's, or nothing to tune over is given.
        OmnivoreError: The user's code failed; its exception is the cause.
    """
    until.check(workload)
    for name, values in (("learning_rates", learning_rates), ("momenta", momenta)):
        if not values:
            raise ValueError(f"{name}={values!r}: give at least one value")
    if not seeds:
        raise ValueError(f"seeds={seeds!r}: give at least one seed")
    if until.metric not in workload.metrics:
        workload = replace(workload, metrics={})
    num_devices = len(cluster.devices)
    cluster.check(Strategy(groups=1, learning_rate=1.0), workload.batch_size)
    runs = _Runs(workload, cluster, until, time_limit_s, Cache(folder), watch or (lambda _: None))
    rates, seeds = tuple(learning_rates), tuple(seeds)
    ladder = group_ladder(num_devices)
    paces_s = [runs.seconds_per_update(groups) for groups in ladder]
    tuned = [runs.tune(groups, rates, tuple(momenta), seeds) for groups in ladder]
    needs = [best.updates for best in tuned]
    if math.isfinite(needs[0]):
        statistical = statistical_efficiency_penalty(needs, needs[0]).tolist()
    else:
        statistical = [math.nan] * len(ladder)
    rows = [
        Row(
            groups=groups,
            seconds_per_update=pace_s,
            hardware_penalty=float(hardware_efficiency_penalty(pace_s, paces_s[0])),
            statistical_penalty=penalty,
            tuned=best,
        )
        for groups, pace_s, penalty, best in zip(ladder, paces_s, statistical, tuned, strict=True)
    ]
    return Table(
        rows=tuple(rows),
        autos=tuple(runs.auto(seed) for seed in seeds),
        synchronous=runs.tune(1, rates, tuple(momenta[:1]), seeds),
        asynchronous=runs.tune(num_devices, rates, tuple(momenta[:1]), seeds),
    )


class _Runs:
    """Runs of one workload on one cluster to one target, each at most once."""

    def __init__(
        self,
        workload: Workload,
        cluster: VirtualCluster,
        until: Target,
        time_limit_s: float,
        cache: Cache,
        watch: Callable[[str], None],
    ) -> None:
        self._workload, self._cluster = workload, cluster
        self._until, self._time_limit_s = until, time_limit_s
        self._cache, self._watch = cache, watch
        self._same = {
            "workload": fingerprint(workload),
            "cluster": asdict(cluster),
            "until": str(until),
        }

    def tune(
        self,
        groups: int,
        learning_rates: tuple[float, ...],
        momenta: tuple[float, ...],
        seeds: tuple[int, ...],
    ) -> Tuned:
        """The best of a grid for one number of groups."""
        first: dict[Strategy, tuple[float, float]] = {}
        best_s = math.inf
        for momentum in momenta:
            for rate in learning_rates:
                strategy = Strategy(groups=groups, learning_rate=rate, momentum=momentum)
                first[strategy] = self._to_target(strategy, seeds[0], _CUT_OFF * best_s)
                best_s = min(best_s, first[strategy][1])
        contenders = []
        for strategy, run in first.items():
            if run[1] <= _CONTENDERS * best_s < math.inf:
                limit_s = _CONTENDERS_CUT_OFF * best_s
                runs = [run, *(self._to_target(strategy, seed, limit_s) for seed in seeds[1:])]
                contenders.append(_over_seeds(strategy, runs))
        return min(contenders, key=lambda tuned: tuned.seconds, default=Tuned(strategy=None))

    def seconds_per_update(self, groups: int) -> float:
        """HE(g), once the pipeline is full."""
        updates = _TIMING_UPDATES + 20 * groups
        finished = timing_request(
            self._workload,
            self._cluster,
            Strategy(groups=groups, learning_rate=1.0),
            until=Target("updates", at_least=updates),
            time_limit_s=None,
            seed=0,
        )
        times, settled = finished.history.columns["time_s"], updates // 5
        return float((times[-1] - times[settled]) / (updates - 1 - settled))

    def auto(self, seed: int) -> Auto:
        """A run of the optimizer."""

        def run() -> dict[str, Any]:
            self._watch(f"auto, seed {seed}")
            with tempfile.TemporaryDirectory() as folder:
                try:
                    result = simulate(
                        self._workload,
                        self._cluster,
                        until=self._until,
                        time_limit_s=self._time_limit_s,
                        seed=seed,
                        path=Path(folder) / "run",
                    )
                except OmnivoreError as error:
                    if error.__cause__ is not None:  # the user's own
                        raise
                    return {"reached": False, "seconds": 0.0, "search_s": 0.0, "strategy": None}
            kept = set(result.history.loc[result.history["kept"], "request"])
            return {
                "reached": result.target_reached,
                "seconds": result.metrics["seconds"],
                "search_s": float(result.decisions.drop(index=sorted(kept))["seconds"].sum()),
                "strategy": asdict(result.strategy),
            }

        found = self._cache.get(
            {**self._same, "auto": True, "seed": seed, "time_limit_s": self._time_limit_s}, run
        )
        strategy = found["strategy"]
        return Auto(
            seed=seed,
            seconds=found["seconds"] if found["reached"] else math.inf,
            search_s=found["search_s"],
            strategy=None if strategy is None else Strategy(**strategy),
        )

    def _to_target(self, strategy: Strategy, seed: int, limit_s: float) -> tuple[float, float]:
        """Updates and seconds to the target; inf when it is not reached within the limit."""
        limit_s = min(limit_s, self._time_limit_s)

        def run() -> dict[str, Any]:
            self._watch(f"{strategy}, seed {seed}")
            fleet = VirtualFleet(
                self._workload,
                self._cluster,
                seed=seed,
                target=self._until,
                time_limit_s=limit_s,
            )
            outcome, _ = fleet.run(Request(kind="train", strategy=strategy), "run")
            return {"status": outcome.status, "updates": outcome.updates, "seconds": fleet.now_s}

        configuration = {
            **self._same, "strategy": asdict(strategy), "seed": seed, "time_limit_s": limit_s,
        }  # fmt: skip
        found = self._cache.get(configuration, run)
        if found["status"] != "target_reached":
            return math.inf, math.inf
        return found["updates"], found["seconds"]


def _over_seeds(strategy: Strategy, runs: Sequence[tuple[float, float]]) -> Tuned:
    (updates, updates_sd), (seconds, seconds_sd) = map(_mean_and_sd, zip(*runs, strict=True))
    return Tuned(
        strategy=strategy,
        updates=updates,
        updates_sd=updates_sd,
        seconds=seconds,
        seconds_sd=seconds_sd,
    )


def _mean_and_sd(values: Sequence[float]) -> tuple[float, float]:
    if not all(map(math.isfinite, values)):
        return math.inf, math.nan
    return statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else math.nan


def _finite_only(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _finite_only(part) for name, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite_only(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
