"""Predicted against measured seconds per update on 8 emulated devices that share one link.

    python benchmarks/hardware_model.py

The model is fitted to timing runs at 1, 4 and 8 groups and predicts 1, 2, 4 and 8. Emulated: real
gradients of LeNet on the digits, paced device clocks, one paced link.
"""

from __future__ import annotations

import json
import statistics
from typing import Any

import click

from measuring import machine
from omnivore_ray import Device, Emulation, zoo
from omnivore_ray.cluster.fleet import Fleet, FleetSpec
from omnivore_ray.cluster.local_ray import attach_or_start
from omnivore_ray.efficiency.fitting import Timing, fit
from omnivore_ray.strategy import Request, Strategy

_DEVICES = 8
_GROUPS = (1, 2, 4, 8)
_FITTED = (1, 4, 8)
_PARAMETERS = 131_080  # of LeNet on 8 x 8 pixels

#: Words of a setting, samples/s of a device, spread of its steps, bytes/s of the shared link.
_SETTINGS = (
    ("compute bound", 40.0, 0.05, 100e6),
    ("compute bound, exponential steps", 40.0, 1.0, 100e6),
    ("link bound", 80.0, 0.05, 10e6),
)


def measure(fleet: Any, groups: int, updates: int) -> float:
    """Seconds per update, by the server's clock."""
    strategy = Strategy(groups=groups, learning_rate=0.001)
    outcome = fleet.run(Request(kind="probe", strategy=strategy, budget_updates=updates))
    assert outcome.seconds_per_update is not None
    return outcome.seconds_per_update


@click.command()
@click.option("--seconds", default=12.0, show_default=True, help="Length of each timing run")
def main(seconds: float) -> None:
    errors: dict[str, float] = {}
    with attach_or_start(num_cpus=2, address="local"):
        for words, rate, jitter, bytes_per_s in _SETTINGS:
            emulation = Emulation(
                samples_per_s=rate, jitter=jitter, bytes_per_s=bytes_per_s, shared_link=True
            )
            workload = zoo.lenet("digits")
            link_s = 2 * 4 * _PARAMETERS / bytes_per_s
            fleet = Fleet(FleetSpec.of(workload, [Device(emulate=emulation)] * _DEVICES))
            try:
                measure(fleet, 8, 16)
                measured = {}
                for groups in _GROUPS:
                    pace_s = measure(fleet, groups, 4 * groups)
                    updates = max(8 * groups, int(seconds / pace_s))
                    measured[groups] = measure(fleet, groups, updates)
            finally:
                fleet.close()
            fitted = fit(
                [
                    Timing(
                        g=g,
                        seconds_per_update=measured[g],
                        head_s=0.0,
                        link_s=link_s * _DEVICES / g,
                    )
                    for g in _FITTED
                ],
                num_devices=_DEVICES,
                cv=jitter,
                sends_when_ready=True,
            )
            predicted = fitted.model.seconds_per_update(list(_GROUPS))
            click.echo(f"{words} ({rate:g} samples/s a device, link {bytes_per_s / 1e6:g} MB/s):")
            for groups, value in zip(_GROUPS, predicted, strict=True):
                error = value / measured[groups] - 1
                errors[f"{words}, g={groups}"] = round(float(error), 3)
                click.echo(
                    f"  g={groups}: measured {measured[groups]:.4f} s, predicted {value:.4f} s "
                    f"({error:+.1%}), limit: {fitted.model.limit(groups)}"
                )
    middle = statistics.median(abs(error) for error in errors.values())
    unseen = [error for name, error in errors.items() if not name.endswith(("=1", "=4", "=8"))]
    click.echo(
        f"median absolute error {middle:.1%} (asked: at most 10 %), at the group counts that were "
        f"not fitted at most {max(map(abs, unseen)):.1%}; emulated; {machine()}"
    )
    click.echo(json.dumps({"benchmark": "hardware_model", "errors": errors}))


if __name__ == "__main__":
    main()
