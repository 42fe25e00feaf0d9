"""Seconds per trial outside the requests' own work, beside a bare reused trial of Ray Tune.

    python benchmarks/trial_overhead.py

Short probes of LeNet (28 x 28) and of a model of 60 MB through Tuner, OmnivoreTrainable and a
scripted search; the bare trainable does nothing and reports once. Wall time of the trials between
the first and the last, less the requests' own seconds, per trial.
"""

from __future__ import annotations

import json
import os
import statistics
import tempfile
import time
from typing import Any

import click
import torch
from ray import tune
from torch import nn

from measuring import machine
from omnivore_ray import Device, Emulation, OmnivoreTrainable, Workload, zoo
from omnivore_ray.cluster.local_ray import attach_or_start
from omnivore_ray.search.searcher import OUTCOME_KEY
from omnivore_ray.trainer import _quiet_tune

_ASKED = {"LeNet": 0.1, "60 MB": 0.4}


class Wide(nn.Module):
    """15 million parameters, next to no computation."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(15_000_000))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return inputs.flatten(1)[:, :1] * self.weight[:1]


def first_output(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return outputs.mean()


class Bare(tune.Trainable):
    """A trial that is done at once."""

    def step(self) -> dict[str, Any]:
        return {"done": True, "loss": 0.0}

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        return True

    def save_checkpoint(self, checkpoint_dir: str) -> dict[str, Any]:
        return {}


class Clock(tune.Callback):
    """When each trial completed."""

    def __init__(self) -> None:
        self.times_s: list[float] = []

    def on_trial_complete(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        self.times_s.append(time.monotonic())


def overhead_s(trainable: Any, trials: int, folder: str) -> float:
    """Median over the trials after the first of the time that was not the request's own."""
    clock = Clock()
    os.environ["TUNE_GLOBAL_CHECKPOINT_S"] = "0"
    tuner = tune.Tuner(
        trainable,
        param_space={"groups": tune.grid_search([1 + n % 2 for n in range(trials)]),
                     "learning_rate": 0.01, "budget_updates": 4},
        tune_config=tune.TuneConfig(reuse_actors=True, max_concurrent_trials=1),
        run_config=tune.RunConfig(
            storage_path=folder, callbacks=[clock], verbose=0,
            checkpoint_config=tune.CheckpointConfig(checkpoint_at_end=False),
        ),
    )  # fmt: skip
    with _quiet_tune():
        grid = tuner.fit()
    assert not grid.errors
    own_s = [
        json.loads((grid[n].metrics or {}).get(OUTCOME_KEY, '{"seconds": 0.0}'))["seconds"]
        for n in range(len(grid))
    ]
    walls_s = [b - a for a, b in zip(clock.times_s, clock.times_s[1:], strict=False)]
    return statistics.median(w - s for w, s in zip(walls_s, sorted(own_s)[1:], strict=True))


@click.command()
@click.option("--trials", default=12, show_default=True)
def main(trials: int) -> None:
    wide = Workload(
        model=Wide, data=zoo.lenet("digits").data, loss=first_output, batch_size=8, name="wide"
    )
    devices = [Device(emulate=Emulation(samples_per_s=1e6))] * 2
    seconds = {}
    with attach_or_start(num_cpus=2, address="local"), tempfile.TemporaryDirectory() as folder:
        bare = overhead_s(tune.with_resources(Bare, {"CPU": 1}), trials, folder)
        for name, workload in (
            ("LeNet", zoo.lenet("random", shape=(1, 28, 28), samples=512, batch_size=8)),
            ("60 MB", wide),
        ):
            trainable = OmnivoreTrainable.configure(workload, devices)
            seconds[name] = round(overhead_s(trainable, trials, folder), 3)
            click.echo(
                f"{name}: {seconds[name]:.3f} s per trial outside the request (asked: at most "
                f"{_ASKED[name]} s); a bare reused trial takes {bare:.3f} s"
            )
    click.echo(f"medians over {trials} trials; {machine()}")
    click.echo(json.dumps({"benchmark": "trial_overhead", "seconds": seconds}))


if __name__ == "__main__":
    main()
