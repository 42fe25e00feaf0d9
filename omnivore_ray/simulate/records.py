"""A simulated run's folder: the same layout as a real run's, so `Result.from_path` reads both."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

from omnivore_ray.result import SUMMARY
from omnivore_ray.search.main_line import Ended, main_line
from omnivore_ray.strategy import Outcome, Request
from omnivore_ray.update.checkpoint import write_checkpoint
from omnivore_ray.update.history import History
from omnivore_ray.update.parameters import Parameters
from omnivore_ray.update.run_state import RunState

_CHECKPOINTS = "checkpoints"


class Finished(NamedTuple):
    """A request that has ended.

    Attributes:
        name: Names its folder, and its state for ``resume_from``.
        request: What was asked for.
        outcome: What became of it.
        history: Its updates.
        state: Where the run stood at its end.
        metrics: Of the run at its end.
    """

    name: str
    request: Request
    outcome: Outcome
    history: History
    state: RunState
    metrics: Mapping[str, float]


def write_request(
    folder: Path, finished: Finished, parameters: Parameters | None, run_s: float
) -> None:
    """Writes a request's history, and with ``parameters`` a checkpoint to go on from.

    Args:
        folder: The run's.
        finished: The request.
        parameters: In the state at its end, or None.
        run_s: Virtual seconds of the run at its end.
    """
    write_checkpoint(
        folder / _CHECKPOINTS / finished.name,
        parameters,
        finished.state,
        finished.history,
        {
            "seconds": run_s,
            "used_s": finished.outcome.seconds,
            "request": finished.request.to_config(),
        },
    )


def write_summary(
    folder: Path,
    requests: Sequence[Finished],
    *,
    settings: Mapping[str, Any],
    decisions: Sequence[Mapping[str, Any]],
    has_checkpoint: bool,
) -> None:
    """Writes what `Result.from_path` reads.

    Args:
        folder: The run's.
        requests: In order.
        settings: What was simulated, for people.
        decisions: One row a request.
        has_checkpoint: Whether the final state was written.
    """
    kept = led_to_the_end(requests)
    final, last = requests[kept[-1]], requests[-1]
    summary = {
        "settings": settings,
        "target_reached": final.outcome.status == "target_reached",
        "strategy": asdict(final.request.strategy),
        "metrics": {**final.metrics, "seconds": last.metrics["seconds"]},
        "checkpoint": f"{_CHECKPOINTS}/{final.name}" if has_checkpoint else None,
        "requests": [f"{_CHECKPOINTS}/{finished.name}" for finished in requests],
        "kept": kept,
        "decisions": decisions,
    }
    folder.mkdir(parents=True, exist_ok=True)
    (folder / SUMMARY).write_text(json.dumps(summary, indent=1))


def led_to_the_end(requests: Sequence[Finished]) -> list[int]:
    """Numbers of the requests that led to the final state, in order."""
    return main_line(
        [
            Ended(
                end_state=done.name,
                start_state=done.request.resume_from,
                kind=done.request.kind,
                status=done.outcome.status,
                loss=done.outcome.loss if math.isfinite(done.outcome.loss) else None,
            )
            for done in requests
        ]
    )
