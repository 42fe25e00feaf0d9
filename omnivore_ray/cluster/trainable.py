"""OmnivoreTrainable: a fleet as a Ray Tune trainable; each trial is one request.

All devices are reserved and all actors started once; with ``reuse_actors=True`` a further trial
only regroups them. The resources it asks for never depend on the number of groups.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal

import ray
from ray import tune

from omnivore_ray.cluster.devices import Device, resolve_devices
from omnivore_ray.cluster.fleet import Fleet, FleetSpec
from omnivore_ray.errors import OmnivoreError
from omnivore_ray.search.searcher import OUTCOME_KEY
from omnivore_ray.strategy import Request, Strategy
from omnivore_ray.update.checkpoint import is_checkpoint, prune_checkpoints
from omnivore_ray.workload import Target, Workload

#: Folder of a run, below Tune's experiment folder, with one checkpoint a trial, named after it.
CHECKPOINTS = "checkpoints"


class OmnivoreTrainable(tune.Trainable):
    """Use `configure`; this class itself has nothing to train."""

    _spec: ClassVar[FleetSpec]
    _checkpoint_every_s: ClassVar[float]

    @classmethod
    def configure(
        cls,
        workload: Workload,
        devices: Literal["auto"] | int | Sequence[Device] = "auto",
        *,
        until: Target | None = None,
        time_limit_s: float | None = None,
        seed: int = 0,
        evaluate_every_s: float = 2.0,
        checkpoint_every_s: float = 60.0,
    ) -> type[OmnivoreTrainable]:
        """A trainable class for any Tuner; starts Ray if nobody has.

        Its trials take ``groups``, ``learning_rate``, ``momentum`` and, if wanted, ``kind``,
        ``round``, ``budget_updates``, ``budget_s`` and ``resume_from`` in their config.

        Args:
            workload: What to train.
            devices: "auto", a number of one-core devices, or a list.
            until: Ends every trial that reaches it.
            time_limit_s: Ends the run, on the clock that starts with the first trial.
            seed: Of the model, the row order and dropout.
            evaluate_every_s: Seconds between validations.
            checkpoint_every_s: Seconds between checkpoints of a running trial.

        Raises:
            ValueError: An argument is not legal.
            OmnivoreError: The cluster has too few resources.
        """
        if until is not None:
            until.check(workload)
        if not ray.is_initialized():
            ray.init()
        nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        spec = FleetSpec.of(
            workload,
            resolve_devices(devices, nodes),
            seed=seed,
            target=until,
            time_limit_s=time_limit_s,
            evaluate_every_s=evaluate_every_s,
        )
        if until is not None and until.metric in workload.metrics and not spec.num_validation_rows:
            raise ValueError(
                f"until={until}: {until.metric!r} is measured on validation data and Workload.data "
                "has none; give datasets.Split(train=..., validation=...), or a target on the loss"
            )
        members = {"_spec": spec, "_checkpoint_every_s": checkpoint_every_s}
        return type(cls.__name__, (cls,), members)

    @classmethod
    def devices(cls) -> tuple[Device, ...]:
        """Devices of the configured fleet."""
        return cls._spec.devices

    @classmethod
    def check(cls, strategy: Strategy) -> None:
        """Refuses a strategy that the configured fleet cannot run.

        Raises:
            ValueError: See `FleetSpec.check`.
        """
        cls._spec.check(strategy)

    @classmethod
    def default_resource_request(cls, config: dict[str, Any]) -> tune.PlacementGroupFactory:
        """One bundle a device, and none for ourselves."""
        bundles = [device.bundle for device in cls._spec.devices if device.bundle]
        return tune.PlacementGroupFactory([{}, *bundles] if bundles else [{"CPU": 0.001}])

    def setup(self, config: dict[str, Any]) -> None:
        """Notes the request; the first `step` starts the fleet, so that its errors arrive whole."""
        self._fleet: Fleet | None = None
        self._place: Path | None = None  # checkpoint folder of the request that runs
        self._due: dict[str, Any] | None = config
        self._next_snapshot_s = 0.0

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        """Notes a further request for the same fleet."""
        self._due = new_config
        return True

    def step(self) -> dict[str, Any]:
        """Waits about a second, and reports; the last report carries the whole outcome."""
        if self._fleet is None:
            self._fleet = Fleet(self._spec)
        if self._due is not None:
            self._begin(self._fleet, self._due)
            self._due = None
        progress = self._fleet.poll(1.0)
        result = dict(progress.metrics)
        if progress.ended:
            result |= self._conclude(self._fleet)
        elif time.monotonic() >= self._next_snapshot_s:
            assert self._place is not None
            self._fleet.snapshot(self._place)
            self._next_snapshot_s = time.monotonic() + self._checkpoint_every_s
        return {**result, "timesteps_total": int(progress.metrics["updates"])}

    def save_checkpoint(self, checkpoint_dir: str) -> dict[str, Any]:
        """What Tune keeps of a trial: where its state is, not a copy of it."""
        return {"checkpoint_path": str(self._experiment_folder() / CHECKPOINTS / self.trial_id)}

    def load_checkpoint(self, checkpoint: dict[str, Any] | None) -> None:
        """A trial finds the state it left by its own id, see `step`; there is nothing to load."""

    def cleanup(self) -> None:
        """Keeps what an interrupted request has done, as far as that is still possible."""
        if self._fleet is not None:
            try:
                if self._place is not None:
                    self._fleet.snapshot(self._place)
            finally:
                self._fleet.close()
                self._fleet = None

    def _begin(self, fleet: Fleet, config: dict[str, Any]) -> None:
        if self._place is not None:  # Tune ended the trial before it was done
            fleet.stop("ended by Tune")
            self._conclude(fleet)
        place = self._experiment_folder() / CHECKPOINTS / self.trial_id
        interrupted = is_checkpoint(place)
        fleet.start(Request.from_config(config), own_checkpoint=place if interrupted else None)
        self._place = place
        self._next_snapshot_s = time.monotonic() + self._checkpoint_every_s

    def _conclude(self, fleet: Fleet) -> dict[str, Any]:
        assert self._place is not None
        outcome = fleet.finish(self._place)
        if outcome.ok and self.config.get("kind") == "train":  # not in a search of the user's own
            prune_checkpoints(self._place.parent)
        self._place = None
        return {
            "done": True,
            "status": outcome.status,
            "checkpoint_path": outcome.checkpoint_path,
            OUTCOME_KEY: json.dumps(outcome.to_json()),
        }

    def _experiment_folder(self) -> Path:
        storage = self._storage
        if storage is None or storage.storage_filesystem.type_name != "local":
            raise OmnivoreError(
                "storage_path must be a folder that all nodes see: checkpoints are written there "
                "directly"
            )
        return Path(storage.experiment_fs_path)
