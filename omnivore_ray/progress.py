"""What a person sees of a run: a line while it goes on, a table at the end."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Mapping
from typing import Any, TextIO

from ray.tune import Callback

#: Seconds between lines where the terminal cannot overwrite one.
_LINE_EVERY_S = 5.0


class ProgressCallback(Callback):
    """Writes one line about the running request to standard error, at most once a second.

    Args:
        time_limit_s: The run's time limit, for the time left.
        own_metrics: Names of the workload's metrics.
    """

    def __init__(self, time_limit_s: float | None, own_metrics: tuple[str, ...]) -> None:
        self._time_limit_s = time_limit_s
        self._own_metrics = own_metrics
        self._next_line_s = 0.0

    def on_trial_result(
        self, iteration: int, trials: list[Any], trial: Any, result: dict[str, Any], **info: Any
    ) -> None:
        """Tune's call after each `step` of the trainable."""
        stream = sys.stderr
        left_s = self._time_left_s(trial.config, result)
        line = progress_line(trial.config, result, self._own_metrics, left_s)
        if stream.isatty():
            stream.write(f"\r\x1b[K{line}" + ("\n" if result.get("done") else ""))
        elif result.get("done") or time.monotonic() >= self._next_line_s:
            self._next_line_s = time.monotonic() + _LINE_EVERY_S
            stream.write(f"{line}\n")
        stream.flush()

    def _time_left_s(self, config: Mapping[str, Any], result: Mapping[str, Any]) -> float | None:
        """Until the time limit or the end of the request's budget, whichever comes first."""
        left = []
        if self._time_limit_s is not None:
            left.append(self._time_limit_s - result["seconds"])
        budget, pace_s = config.get("budget_updates"), result["seconds_per_update"]
        if budget is not None and math.isfinite(pace_s):
            left.append(pace_s * max(0, budget - result["updates"]))
        return max(0.0, min(left)) if left else None


def progress_line(
    config: Mapping[str, Any],
    result: Mapping[str, Any],
    own_metrics: tuple[str, ...],
    time_left_s: float | None,
) -> str:
    """One line about a request of this config."""
    parts = [
        f"{config.get('kind', 'train'):5} g={config['groups']} lr={config['learning_rate']:.3g} "
        f"mu={config['momentum']:.2g}",
        f"update {result['updates']:.0f}",
        f"{result['samples_per_s']:.0f} samples/s",
        f"loss {result['loss']:.4f}",
        *(f"{name} {result[name]:.4f}" for name in own_metrics if name in result),
        f"staleness {result['staleness_mean']:.2f}",
        f"{result['seconds']:.0f} s",
    ]
    if time_left_s is not None:
        parts.append(f"{time_left_s:.0f} s left at most")
    return " | ".join(parts)


def search_time(result: Any) -> str:
    """What the probes of a run cost: the cold start, and the share of the time after it."""
    probes = result.decisions[result.decisions["kind"] == "probe"]
    cold_s = probes.loc[probes["round"] == 0, "seconds"].sum()
    later_s = probes.loc[probes["round"] > 0, "seconds"].sum()
    rest_s = max(result.metrics["seconds"] - cold_s, 1e-9)
    return f"{cold_s:.1f} s of cold start, then {later_s / rest_s:.0%} of the time in probes"


def write_table(result: Any, stream: TextIO) -> None:
    """A short table of a finished run."""
    from rich.console import Console
    from rich.table import Table

    table = Table("", "", show_header=False, title="omnivore_ray", title_justify="left")
    table.add_row("target reached", "yes" if result.target_reached else "no")
    table.add_row("strategy", str(result.strategy))
    for name, value in result.metrics.items():
        if name not in ("groups", "learning_rate", "momentum"):
            table.add_row(name, f"{value:,.6g}")
    if (result.decisions["kind"] == "probe").any():
        table.add_row("time in search", search_time(result))
    table.add_row("folder", str(result.path))
    Console(file=stream, soft_wrap=True).print(table)
