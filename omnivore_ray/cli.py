"""The ``omnivore`` command."""

from __future__ import annotations

import importlib
import json
import math
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from omnivore_ray.errors import OmnivoreError
from omnivore_ray.simulate.command import simulate_command
from omnivore_ray.strategy import Strategy
from omnivore_ray.workload import STRATEGY_METRICS, Target, Workload

if TYPE_CHECKING:
    from omnivore_ray.result import Result

_INTERRUPTED = 130


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="omnivore-ray")
def main() -> None:
    """Train a PyTorch model on whatever devices you have, in the least time."""


@main.command()
@click.argument("workload", metavar="MODULE:WORKLOAD")
@click.option(
    "--strategy",
    default="auto",
    show_default=True,
    help="auto, or groups=2,learning_rate=0.05,momentum=0.6",
)
@click.option(
    "--devices", default="auto", show_default=True, help="auto, or a number of one-core devices"
)
@click.option("--until", help="Target that ends the run, e.g. 'accuracy>=0.97'")
@click.option("--time-limit", "time_limit_s", type=float, help="Seconds after which it ends")
@click.option("--seed", default=0, show_default=True, help="Of model, row order and dropout")
@click.option("--name", help="Name of the run's folder")
@click.option(
    "--storage-path",
    type=click.Path(path_type=Path),
    help="Where that folder goes  [default: Ray Tune's]",
)
@click.option("--address", help="Ray cluster to connect to  [default: RAY_ADDRESS, or its own]")
@click.option(
    "--json", "as_json", is_flag=True, help="End standard output with one line, a JSON object"
)
def train(
    workload: str,
    strategy: str,
    devices: str,
    until: str | None,
    time_limit_s: float | None,
    seed: int,
    name: str | None,
    storage_path: Path | None,
    address: str | None,
    as_json: bool,
) -> None:
    """Train MODULE:WORKLOAD: any importable Workload, or a callable that returns one.

    zoo:lenet is short for ours. The exit code is 0 when the target was reached (or none was
    given), 1 when not or when the run failed, 2 for illegal arguments, 130 when interrupted.
    """
    try:
        trainer = _trainer(
            workload, strategy, devices, until, time_limit_s, seed, name, storage_path
        )
        with _session(address):
            result = trainer.fit()
    except ValueError as error:
        _fail(error, 2)
    except OmnivoreError as error:
        _fail(error, 1)
    except KeyboardInterrupt as error:
        _fail(error if str(error) else "interrupted", _INTERRUPTED)
    show(result, as_json=as_json)
    sys.exit(0 if until is None or result.target_reached else 1)


def load_workload(name: str) -> Workload:
    """Finds a workload by ``module:attribute``; modules in the current folder are found too.

    Raises:
        ValueError: There is no such module or attribute, or it is no workload.
    """
    module_name, separator, attribute = name.partition(":")
    if not separator or not module_name or not attribute:
        raise ValueError(f"workload={name!r}: write MODULE:WORKLOAD, e.g. zoo:lenet")
    if module_name == "zoo":
        module_name = "omnivore_ray.zoo"
    _make_importable(Path.cwd())
    try:
        found: Any = importlib.import_module(module_name)
        for part in attribute.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError) as error:
        raise ValueError(f"workload={name!r}: {error}") from error
    if not isinstance(found, Workload) and callable(found):
        found = found()
    if not isinstance(found, Workload):
        raise ValueError(
            f"workload={name!r} is a {type(found).__name__}; name a Workload or a callable "
            "that returns one"
        )
    return found


def show(result: Result, *, as_json: bool) -> None:
    """Writes the table of a finished run and, if wanted, the JSON line, to standard output."""
    from omnivore_ray.progress import write_table

    write_table(result, sys.stdout)
    if as_json:
        samples, updates = result.metrics["samples"], result.metrics["updates"]
        line = {
            "target_reached": result.target_reached,
            "metrics": {
                name: value if math.isfinite(value) else None
                for name, value in result.metrics.items()
                if name not in STRATEGY_METRICS
            },
            "updates": int(updates),
            "samples": int(samples),
            "seconds": result.metrics["seconds"],
            "strategy": {name: getattr(result.strategy, name) for name in STRATEGY_METRICS},
            "path": str(result.path),
        }
        click.echo(json.dumps(line))
    sys.stdout.flush()


def _trainer(
    workload: str,
    strategy: str,
    devices: str,
    until: str | None,
    time_limit_s: float | None,
    seed: int,
    name: str | None,
    storage_path: Path | None,
) -> Any:
    from ray import tune

    from omnivore_ray.trainer import OmnivoreTrainer

    return OmnivoreTrainer(
        load_workload(workload),
        strategy="auto" if strategy == "auto" else Strategy.parse(strategy),
        devices=int(devices) if devices.isdecimal() else devices,  # type: ignore[arg-type]
        until=None if until is None else Target.parse(until),
        time_limit_s=time_limit_s,
        seed=seed,
        run_config=tune.RunConfig(
            name=name,
            storage_path=None if storage_path is None else str(storage_path.resolve()),
        ),
    )


def _session(address: str | None) -> Any:
    from omnivore_ray.cluster.local_ray import attach_or_start

    return attach_or_start(address=address)


def _make_importable(folder: Path) -> None:
    """Makes modules of ``folder`` importable here, and in the actors of a Ray started here."""
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
    paths = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    if str(folder) not in paths:
        os.environ["PYTHONPATH"] = os.pathsep.join([str(folder), *filter(None, paths)])


def _fail(error: object, code: int) -> Any:
    click.echo(f"omnivore: {error}", err=True)
    sys.exit(code)


main.add_command(
    simulate_command(load_workload, lambda result, as_json: show(result, as_json=as_json))
)
