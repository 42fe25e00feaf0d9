"""OmnivoreTrainer: trains a workload on the devices there are, and says what it found."""

from __future__ import annotations

import contextlib
import copy
import json
import logging
import os
import signal
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from omnivore_ray.errors import OmnivoreError
from omnivore_ray.result import SUMMARY, Result
from omnivore_ray.strategy import Strategy
from omnivore_ray.workload import RUN_METRICS, STRATEGY_METRICS, Target, Workload

if TYPE_CHECKING:
    from ray import tune

    from omnivore_ray.cluster.devices import Device
    from omnivore_ray.search.searcher import AlgorithmSearch


class OmnivoreTrainer:
    """One run: a workload, devices, and when to stop.

    Args:
        workload: What to train.
        strategy: "auto" (the optimizer finds and re-finds it), or a `Strategy`.
        devices: "auto", a number of one-core devices, or a list of `Device`.
        until: Target that ends the run, or None.
        time_limit_s: Seconds of training after which the run ends, or None.
        seed: Of the model, the row order, dropout and the search.
        run_config: Name, storage path and callbacks of the run, as for any Tuner.
        evaluate_every_s: Seconds between validations.
        checkpoint_every_s: Seconds between checkpoints: the most work an interruption can cost.

    Raises:
        ValueError: An argument is not legal; names it, its value and the fix.
    """

    def __init__(
        self,
        workload: Workload,
        *,
        strategy: Literal["auto"] | Strategy = "auto",
        devices: Literal["auto"] | int | Sequence[Device] = "auto",
        until: Target | None = None,
        time_limit_s: float | None = None,
        seed: int = 0,
        run_config: tune.RunConfig | None = None,
        evaluate_every_s: float = 2.0,
        checkpoint_every_s: float = 60.0,
    ) -> None:
        from omnivore_ray.cluster.devices import check_devices

        if not isinstance(workload, Workload):
            raise ValueError(f"workload={workload!r}: give a Workload(...)")
        if strategy != "auto" and not isinstance(strategy, Strategy):
            raise ValueError(f"strategy={strategy!r}: give 'auto' or a Strategy(...)")
        check_devices(devices)
        if until is not None and not isinstance(until, Target):
            raise ValueError(
                f"until={until!r}: give a Target(...), e.g. Target('loss', at_most=0.1)"
            )
        if until is not None:
            until.check(workload)
        if until is None and time_limit_s is None:
            raise ValueError("give until= or time_limit_s=, or the run would never end")
        if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
            raise ValueError(f"seed={seed!r}: give a whole number, 0 or more")
        for name, value in (
            ("time_limit_s", time_limit_s),
            ("evaluate_every_s", evaluate_every_s),
            ("checkpoint_every_s", checkpoint_every_s),
        ):
            if value is not None and not (isinstance(value, (int, float)) and value > 0):
                raise ValueError(f"{name}={value!r}: give a number of seconds above 0")
        self._workload = workload
        self._strategy = strategy
        self._devices = devices
        self._until = until
        self._time_limit_s = time_limit_s
        self._seed = seed
        self._run_config = run_config
        self._evaluate_every_s = evaluate_every_s
        self._checkpoint_every_s = checkpoint_every_s
        self._restored_from: Path | None = None

    @classmethod
    def restore(cls, path: Path | str, workload: Workload) -> OmnivoreTrainer:
        """A trainer that goes on with an interrupted run when `fit` is called.

        At most ``checkpoint_every_s`` of training is repeated. Only for folders you trust: Ray
        Tune unpickles its own files in them.

        Args:
            path: The run's folder.
            workload: The same workload as before.

        Raises:
            OmnivoreError: The folder is not that of a run.
        """
        folder = Path(path).expanduser().resolve()
        try:
            settings = json.loads((folder / SUMMARY).read_text())["settings"]
            trainer = cls(workload, **_settings_from_json(settings))
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise OmnivoreError(
                f"{folder} is not the folder of a run: {type(error).__name__}: {error}"
            ) from error
        trainer._restored_from = folder
        return trainer

    def fit(self) -> Result:
        """Trains.

        Uses the Ray session that is there, the cluster RAY_ADDRESS names, or one of its own on
        the loopback address, which it ends again.

        Raises:
            ValueError: What only the cluster or the model could tell is not legal.
            OmnivoreError: The run failed; the cause is its ``__cause__``.
            KeyboardInterrupt: It was interrupted; says which folder to restore from.
        """
        from omnivore_ray.cluster.local_ray import attach_or_start

        with attach_or_start():
            return self._fit()

    # -- inside -----------------------------------------------------------------------------------

    def _fit(self) -> Result:
        from ray import tune

        from omnivore_ray.cluster.devices import wait_until_free
        from omnivore_ray.cluster.trainable import OmnivoreTrainable
        from omnivore_ray.recovery import bring_back
        from omnivore_ray.search.searcher import AlgorithmSearch

        trainable = OmnivoreTrainable.configure(
            self._workload,
            self._devices,
            until=self._until,
            time_limit_s=self._time_limit_s,
            seed=self._seed,
            evaluate_every_s=self._evaluate_every_s,
            checkpoint_every_s=self._checkpoint_every_s,
        )
        wait_until_free(trainable.devices())
        if self._restored_from is not None:
            bring_back(self._restored_from)
            tuner = tune.Tuner.restore(str(self._restored_from), trainable, resume_errored=True)
            internal: Any = tuner._local_tuner  # the searcher that Tune restored has no public way
            return self._run(tuner, internal._tune_config.search_alg, self._restored_from)
        search = AlgorithmSearch(self._algorithm(len(trainable.devices())))
        smallest = Strategy(groups=1, learning_rate=1.0)  # the largest groups "auto" may ask for
        trainable.check(self._strategy if isinstance(self._strategy, Strategy) else smallest)
        config = self._tune_run_config()
        folder = Path(config.storage_path or "") / (config.name or "")
        folder.mkdir(parents=True, exist_ok=True)
        (folder / SUMMARY).write_text(json.dumps({"settings": self._settings_to_json()}, indent=1))
        tuner = tune.Tuner(
            trainable,
            tune_config=tune.TuneConfig(
                search_alg=search,
                num_samples=-1,
                reuse_actors=True,
                trial_dirname_creator=_folder_name,
            ),
            run_config=config,
        )
        return self._run(tuner, search, folder)

    def _settings_to_json(self) -> dict[str, Any]:
        devices, strategy, until = self._devices, self._strategy, self._until
        return {
            "strategy": asdict(strategy) if isinstance(strategy, Strategy) else strategy,
            "devices": [asdict(d) for d in devices]
            if isinstance(devices, Sequence) and not isinstance(devices, str)
            else devices,
            "until": None if until is None else asdict(until),
            "time_limit_s": self._time_limit_s,
            "seed": self._seed,
            "evaluate_every_s": self._evaluate_every_s,
            "checkpoint_every_s": self._checkpoint_every_s,
        }

    def _algorithm(self, num_devices: int) -> Any:
        from omnivore_ray.search.algorithm import OmnivoreAlgorithm
        from omnivore_ray.search.fixed import FixedAlgorithm

        if isinstance(self._strategy, Strategy):
            return FixedAlgorithm(self._strategy)
        return OmnivoreAlgorithm(num_devices, seed=self._seed)

    def _tune_run_config(self) -> tune.RunConfig:
        """The user's, with what the engine needs: our progress line, no checkpoints of Tune's."""
        from ray import tune

        from omnivore_ray.progress import ProgressCallback
        from omnivore_ray.recovery import StateKeeper

        config = copy.copy(self._run_config) or tune.RunConfig()
        config.name = config.name or f"{self._workload.name}-{time.strftime('%Y%m%d-%H%M%S')}"
        if "://" in str(config.storage_path):
            raise ValueError(
                f"run_config.storage_path={config.storage_path!r}: give a folder; checkpoints are "
                "written there directly"
            )
        config.storage_path = str(Path(config.storage_path or "").expanduser().resolve())
        config.callbacks = [
            *(config.callbacks or []),
            StateKeeper(Path(config.storage_path) / config.name),
            ProgressCallback(self._time_limit_s, tuple(self._workload.metrics)),
        ]
        config.checkpoint_config = tune.CheckpointConfig(
            checkpoint_frequency=0, checkpoint_at_end=False
        )
        config.failure_config = tune.FailureConfig(max_failures=0, fail_fast=True)
        config.verbose = 0
        return config

    def _run(self, tuner: tune.Tuner, search: AlgorithmSearch, folder: Path) -> Result:
        with _quiet_tune(), _sigterm_interrupts(), _environment("TUNE_GLOBAL_CHECKPOINT_S", "0"):
            grid = tuner.fit()
        if grid.errors:
            raise _run_error(grid.errors[0])
        if search.live:
            raise KeyboardInterrupt(
                f"the run was interrupted; go on with "
                f"OmnivoreTrainer.restore({str(folder)!r}, workload).fit()"
            )
        if search.algorithm.failure is not None:
            raise OmnivoreError(f"{search.algorithm.failure} (the run's folder is {folder})")
        results = [grid[index].metrics or {} for index in range(len(grid))]
        by_trial = {metrics["trial_id"]: metrics for metrics in results}
        write_summary(folder, by_trial, search, tuple(self._workload.metrics))
        return Result.from_path(folder, self._workload)


def _settings_from_json(settings: dict[str, Any]) -> dict[str, Any]:
    """The inverse of `OmnivoreTrainer._settings_to_json`."""
    from omnivore_ray.cluster.devices import Device
    from omnivore_ray.device.emulation import Emulation

    arguments = dict(settings)
    if isinstance(arguments["strategy"], dict):
        arguments["strategy"] = Strategy(**arguments["strategy"])
    if arguments["until"] is not None:
        arguments["until"] = Target(**arguments["until"])
    if isinstance(arguments["devices"], list):
        devices = []
        for device in arguments["devices"]:
            emulate = device.pop("emulate")
            emulation = None if emulate is None else Emulation(**emulate)
            devices.append(Device(**device, emulate=emulation))
        arguments["devices"] = devices
    return arguments


def write_summary(
    path: Path,
    results: Mapping[str, Mapping[str, Any]],
    search: AlgorithmSearch,
    own_metrics: tuple[str, ...],
) -> None:
    """Writes what `Result.from_path` reads.

    Args:
        path: The run's folder.
        results: Last Tune result of each request, by trial id.
        search: What drove the run.
        own_metrics: Names of the workload's metrics.
    """
    from omnivore_ray.cluster.trainable import CHECKPOINTS

    kept, requests = search.kept(), search.finished
    final = requests[kept[-1]]
    metrics = results[final["trial_id"]]
    ended = results[requests[-1]["trial_id"]]
    checkpoint = final["checkpoint_path"]
    names = [name for name in (*RUN_METRICS, *own_metrics) if name in metrics]
    summary = json.loads((path / SUMMARY).read_text()) | {
        "target_reached": final["status"] == "target_reached",
        "strategy": {name: metrics["config"][name] for name in STRATEGY_METRICS},
        "metrics": {name: metrics[name] for name in names} | {"seconds": ended["seconds"]},
        "checkpoint": None if checkpoint is None else str(Path(checkpoint).relative_to(path)),
        "requests": [f"{CHECKPOINTS}/{row['trial_id']}" for row in requests],
        "kept": kept,
        "decisions": search.algorithm.decisions(),
    }
    (path / SUMMARY).write_text(json.dumps(summary, indent=1))


def _folder_name(trial: Any) -> str:
    """Name of a request's folder of Tune's: what it is, so that TensorBoard is readable."""
    config = trial.config
    return (
        f"r{config.get('round', 0)}-{config.get('kind', 'train')}-g{config['groups']}"
        f"-lr{config['learning_rate']:.3g}-mu{config['momentum']:.3g}-{trial.trial_id}"
    )


def _run_error(error: BaseException) -> BaseException:
    """The exception behind Ray's wrappers: ours, or the user's."""
    while getattr(error, "cause", None) is not None:
        error = error.cause  # type: ignore[attr-defined]
    if isinstance(error, (OmnivoreError, ValueError)):
        return error
    return OmnivoreError(f"the run failed: {type(error).__name__}: {error}")


@contextlib.contextmanager
def _quiet_tune() -> Iterator[None]:
    """Keeps Tune's own tables and hints off the terminal; ours say what there is to say."""
    logger = logging.getLogger("ray.tune")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere):
            yield
    finally:
        logger.setLevel(level)


@contextlib.contextmanager
def _sigterm_interrupts() -> Iterator[None]:
    """Makes SIGTERM (``ray job stop``, a scheduler) end the run as Ctrl-C does."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextlib.contextmanager
def _environment(name: str, value: str) -> Iterator[None]:
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before
