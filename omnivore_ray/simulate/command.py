"""``omnivore simulate``: what a cluster would do, without the cluster."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from omnivore_ray.errors import OmnivoreError
from omnivore_ray.strategy import Strategy
from omnivore_ray.workload import Target, Workload

if TYPE_CHECKING:
    from omnivore_ray.result import Result
    from omnivore_ray.simulate.cluster import VirtualCluster

_INTERRUPTED = 130
#: Of the times of ``--devices``: equal ones would keep in step for ever, as no real ones do.
_JITTER = 0.05


def simulate_command(
    load_workload: Callable[[str], Workload], show: Callable[[Result, bool], None]
) -> click.Command:
    """The command; what it shares with others is handed in, since rooms do not import the cli.

    Args:
        load_workload: Finds a workload by ``module:attribute``.
        show: Writes a result's table, and with True the JSON line, to standard output.
    """

    @click.command(name="simulate")
    @click.argument("workload", metavar="MODULE:WORKLOAD")
    @click.option("--cluster", "preset_name", metavar="PRESET", help=_preset_help())
    @click.option("--devices", type=int, help="A number of equal devices instead, 5 % jitter")
    @click.option("--samples-per-s", type=float, help="Rate of each of these")
    @click.option(
        "--strategy",
        default="auto",
        show_default=True,
        help="auto, or groups=2,learning_rate=0.05,momentum=0.6",
    )
    @click.option("--until", help="Target that ends the run, e.g. 'accuracy>=0.97'")
    @click.option("--time-limit", "time_limit_s", type=float, help="Virtual seconds it may take")
    @click.option("--seed", default=0, show_default=True, help="Of the run; of a table, the first")
    @click.option("--timing-only", is_flag=True, help="No gradients: seconds and staleness only")
    @click.option("--table", is_flag=True, help="The trade-off table over the numbers of groups")
    @click.option("--seeds", default=3, show_default=True, help="Seeds of a table")
    @click.option(
        "--folder",
        type=click.Path(path_type=Path),
        help="Of the result  [default: a temporary one]; of a table's runs, kept to resume from  "
        "[default: omnivore-table]",
    )
    @click.option(
        "--json", "as_json", is_flag=True, help="End standard output with one line, a JSON object"
    )
    def command(
        workload: str,
        preset_name: str | None,
        devices: int | None,
        samples_per_s: float | None,
        strategy: str,
        until: str | None,
        time_limit_s: float | None,
        seed: int,
        timing_only: bool,
        table: bool,
        seeds: int,
        folder: Path | None,
        as_json: bool,
    ) -> None:
        """Run MODULE:WORKLOAD on a virtual cluster: real gradients, virtual seconds.

        The exit code is 0 when the target was reached (or none was given), 1 when not or when the
        run failed, 2 for illegal arguments, 130 when interrupted.
        """
        try:
            loaded = load_workload(workload)
            cluster = _cluster(preset_name, devices, samples_per_s, loaded.batch_size, timing_only)
            click.echo(f"simulated: {cluster}")
            target = None if until is None else Target.parse(until)
            if table:
                _run_table(loaded, cluster, target, time_limit_s, seed, seeds, folder, as_json)
                return
            from omnivore_ray.simulate.run import simulate

            with _bar(time_limit_s) as watch:
                result = simulate(
                    loaded,
                    cluster,
                    "auto" if strategy == "auto" else Strategy.parse(strategy),
                    until=target,
                    time_limit_s=time_limit_s,
                    seed=seed,
                    timing_only=timing_only,
                    path=folder,
                    watch=watch,
                )
        except ValueError as error:
            _fail(error, 2)
        except OmnivoreError as error:
            _fail(error, 1)
        except KeyboardInterrupt:
            _fail("interrupted", _INTERRUPTED)
        show(result, as_json)
        sys.exit(0 if until is None or result.target_reached else 1)

    return command


def _preset_help() -> str:
    return (
        "paper-gpu-9, paper-cpu-9, paper-cpu-33, 1gbit-32, 10gbit-32, exponential-32 or stalls-32; "
        "the clock is CaffeNet's whatever is trained"
    )


def _cluster(
    preset_name: str | None,
    devices: int | None,
    samples_per_s: float | None,
    batch_size: int,
    timing_only: bool,
) -> VirtualCluster:
    from omnivore_ray.simulate.cluster import VirtualCluster
    from omnivore_ray.simulate.presets import preset
    from omnivore_ray.simulate.service_times import ServiceTimes

    if preset_name is not None:
        if devices is not None or samples_per_s is not None:
            raise ValueError(f"--cluster {preset_name} has its devices; leave out --devices")
        return preset(preset_name, batch_size=batch_size, head_served=timing_only)
    if devices is None or samples_per_s is None:
        raise ValueError("give --cluster PRESET, or --devices N and --samples-per-s R")
    jittered = ServiceTimes("jittered", cv=_JITTER)
    return VirtualCluster.uniform(devices, samples_per_s, service_times=jittered)


def _run_table(
    workload: Workload,
    cluster: VirtualCluster,
    until: Target | None,
    time_limit_s: float | None,
    seed: int,
    seeds: int,
    folder: Path | None,
    as_json: bool,
) -> None:
    from omnivore_ray.simulate.table import make_table
    from omnivore_ray.simulate.table_text import write_table

    if until is None or time_limit_s is None:
        raise ValueError("--table needs --until, e.g. 'loss<=0.1', and --time-limit")
    if seeds < 1:
        raise ValueError(f"--seeds {seeds}: give at least 1")
    with _status() as watch:
        table = make_table(
            workload,
            cluster,
            until=until,
            time_limit_s=time_limit_s,
            folder=folder or Path("omnivore-table"),
            seeds=range(seed, seed + seeds),
            watch=watch,
        )
    write_table(
        table, f"{workload.name} to {until}, {cluster}; {seeds} seeds, simulated", sys.stdout
    )
    if as_json:
        click.echo(json.dumps(table.to_json()))


@contextmanager
def _bar(time_limit_s: float | None) -> Iterator[Callable[[Mapping[str, float]], None]]:
    """A bar over the virtual seconds, on standard error; nothing where that is no terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    text = TextColumn("{task.description}")
    console = Console(stderr=True)
    with Progress(
        BarColumn(), text, TimeElapsedColumn(), console=console, disable=not console.is_terminal
    ) as progress:
        task = progress.add_task("starting", total=time_limit_s)

        def watch(metrics: Mapping[str, float]) -> None:
            progress.update(
                task,
                completed=metrics["seconds"],
                description=f"groups {metrics['groups']:.0f} | update {metrics['updates']:.0f} | "
                f"loss {metrics['loss']:.4f} | {metrics['seconds']:.0f} virtual s",
            )

        yield watch


@contextmanager
def _status() -> Iterator[Callable[[str], None]]:
    """What is run now, on standard error."""
    from rich.console import Console

    console = Console(stderr=True)
    with console.status("reading what is there") as status:
        yield lambda words: status.update(words)


def _fail(error: object, code: int) -> Any:
    click.echo(f"omnivore: {error}", err=True)
    sys.exit(code)
