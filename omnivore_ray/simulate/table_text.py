"""The trade-off table for people."""

from __future__ import annotations

import math
from typing import TextIO

from rich.console import Console
from rich.table import Table as Grid

from omnivore_ray.simulate.table import Table
from omnivore_ray.strategy import Strategy


def write_table(table: Table, title: str, stream: TextIO) -> None:
    """Writes the trade-off table, then the optimizer's runs and the baselines."""
    grid = Grid(title=title, title_justify="left")
    for heading in (
        "groups", "s/update", "updates", "P_HE", "P_SE", "s to target", "learning rate", "momentum",
    ):  # fmt: skip
        grid.add_column(heading, justify="right")
    for row in table.rows:
        best = row.tuned
        grid.add_row(
            str(row.groups),
            f"{row.seconds_per_update:.4g}",
            _plus_minus(best.updates, best.updates_sd),
            f"{row.hardware_penalty:.3f}",
            _number(row.statistical_penalty),
            _plus_minus(best.seconds, best.seconds_sd),
            *_settings(best.strategy),
        )
    runs = Grid(title="runs to the same target", title_justify="left")
    for heading in ("", "groups", "s to target", "of it search", "learning rate", "momentum"):
        runs.add_column(heading, justify="right")
    for auto in table.autos:
        groups = "-" if auto.strategy is None else str(auto.strategy.groups)
        runs.add_row(
            f"auto, seed {auto.seed}",
            groups,
            _number(auto.seconds),
            _number(auto.search_s),
            *_settings(auto.strategy),
        )
    baselines = (("synchronous, .9", table.synchronous), ("asynchronous, .9", table.asynchronous))
    for name, best in baselines:
        groups = "-" if best.strategy is None else str(best.strategy.groups)
        seconds = _plus_minus(best.seconds, best.seconds_sd)
        runs.add_row(name, groups, seconds, "", *_settings(best.strategy))
    console = Console(file=stream, width=110)
    console.print(grid)
    console.print(runs)


def _settings(strategy: Strategy | None) -> tuple[str, str]:
    if strategy is None:
        return "-", "-"
    return f"{strategy.learning_rate:.3g}", f"{strategy.momentum:.2g}"


def _plus_minus(mean: float, sd: float) -> str:
    return _number(mean) + (f" ± {sd:.2g}" if math.isfinite(sd) else "")


def _number(value: float) -> str:
    return f"{value:.4g}" if math.isfinite(value) else "never" if math.isinf(value) else "-"
