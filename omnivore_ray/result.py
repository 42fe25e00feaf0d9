"""Result: what a run found out, read from its folder alone."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd

from omnivore_ray.errors import OmnivoreError
from omnivore_ray.strategy import Strategy

if TYPE_CHECKING:
    from torch import nn

    from omnivore_ray.workload import Workload

#: Summary file in the run's folder.
SUMMARY = "omnivore.json"


@dataclass(frozen=True, kw_only=True)
class Result:
    """A finished run.

    Attributes:
        strategy: The strategy that trained last.
        metrics: `omnivore_ray.workload.RUN_METRICS` and the workload's own, at the end.
        history: One row per applied update, see `omnivore_ray.update.history.COLUMNS`, with
            ``request``, the number of the request it belongs to, from 0, and ``kept``, whether
            it led to the final state (updates of probes that lost did not).
        decisions: One row per request: what was asked for, why, and what came of it.
        checkpoint: Folder of the final state.
        path: The run's folder.
        target_reached: Whether the run's target was met.
        workload: What was trained, for `model`; None when read from a folder without it.
    """

    strategy: Strategy
    metrics: Mapping[str, float]
    history: pd.DataFrame
    decisions: pd.DataFrame
    checkpoint: Path | None
    path: Path
    target_reached: bool
    workload: Workload | None = None

    @classmethod
    def from_path(cls, path: Path | str, workload: Workload | None = None) -> Result:
        """Reads a run's folder; safetensors, JSON and Parquet only.

        Args:
            path: The run's folder, ``Result.path``.
            workload: Needed for `model` only.

        Raises:
            OmnivoreError: The folder is not that of a finished run, or is damaged.
        """
        folder = Path(path).expanduser().resolve()
        try:
            summary = json.loads((folder / SUMMARY).read_text())
            kept = set(summary["kept"])
            histories = [
                pd.read_parquet(folder / place / "history.parquet").assign(
                    request=number, kept=number in kept
                )
                for number, place in enumerate(summary["requests"])
                if (folder / place / "history.parquet").is_file()
            ]
            checkpoint = summary["checkpoint"]
            return cls(
                strategy=Strategy(**summary["strategy"]),
                metrics=summary["metrics"],
                history=pd.concat(histories, ignore_index=True) if histories else pd.DataFrame(),
                decisions=pd.DataFrame(summary["decisions"]),
                checkpoint=None if checkpoint is None else folder / checkpoint,
                path=folder,
                target_reached=bool(summary["target_reached"]),
                workload=workload,
            )
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise OmnivoreError(
                f"{folder} is not the folder of a finished run: {type(error).__name__}: {error}"
            ) from error

    def model(self) -> nn.Module:
        """A new module in the final state, in evaluation mode.

        Raises:
            OmnivoreError: There is no checkpoint, or no workload to make the module from.
        """
        from omnivore_ray.update.checkpoint import read_tensors

        if self.checkpoint is None or self.workload is None:
            missing = "checkpoint" if self.checkpoint is None else "workload"
            raise OmnivoreError(
                f"this result has no {missing}"
                + ("; use Result.from_path(path, workload)" if self.checkpoint else "")
            )
        module = self.workload.model()
        module.load_state_dict(read_tensors(self.checkpoint, "model.safetensors"), strict=True)
        return module.eval()
