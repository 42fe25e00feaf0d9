"""Samples/s of two one-core devices in two groups, beside two plain one-thread loops.

    python benchmarks/throughput.py

LeNet, random input of 1 x 28 x 28, batch 256, float32. The plain loops run in processes of their
own, both at once, before and after the fleet, with Ray up: the ratio is against the mean of both.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import click

from measuring import machine

_BATCH = 256


def plain_loop(seconds: float) -> float:
    """Samples/s of a stock loop, after a warm-up of a quarter of the time."""
    import time

    import torch
    import torch.nn.functional as F

    from omnivore_ray.zoo import LeNet

    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = LeNet(image_size=28)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.5)
    inputs, targets = torch.randn(4096, 1, 28, 28), torch.randint(10, (4096,))
    begun_s, samples, start_s = time.monotonic(), 0, 0.0
    while time.monotonic() - begun_s < seconds:
        rows = torch.randint(4096, (_BATCH,))
        optimizer.zero_grad()
        F.cross_entropy(model(inputs[rows]), targets[rows]).backward()
        optimizer.step()
        if time.monotonic() - begun_s > seconds / 4:
            start_s = start_s or time.monotonic()
            samples += _BATCH
    return (samples - _BATCH) / (time.monotonic() - start_s)


def two_plain_loops(seconds: float) -> float:
    """Sum of two such loops, each in its own process, at once."""
    command = [sys.executable, __file__, "--plain", str(seconds)]
    loops = [subprocess.Popen(command, stdout=subprocess.PIPE) for _ in range(2)]
    return sum(float(loop.communicate()[0]) for loop in loops)


def fleet_rate(fleet: Any, seconds: float) -> tuple[float, float]:
    """Samples/s and mean staleness of a train request on a warm fleet."""
    from omnivore_ray.strategy import Request, Strategy

    strategy = Strategy(groups=2, learning_rate=0.01, momentum=0.5)
    fleet.start(Request(kind="train", strategy=strategy, budget_s=seconds))
    progress = fleet.poll(1.0)
    while not progress.ended:
        progress = fleet.poll(1.0)
    outcome = fleet.finish()
    return outcome.samples / outcome.seconds, progress.metrics["staleness_mean"]


@click.command()
@click.option("--seconds", default=12.0, show_default=True, help="Length of each stretch")
@click.option("--rounds", default=3, show_default=True, help="Fleet stretches between loops")
@click.option("--plain", type=float, hidden=True)
def main(seconds: float, rounds: int, plain: float | None) -> None:
    if plain is not None:
        click.echo(plain_loop(plain))
        return
    from omnivore_ray import Device, zoo
    from omnivore_ray.cluster.fleet import Fleet, FleetSpec
    from omnivore_ray.cluster.local_ray import attach_or_start

    workload = zoo.lenet("random", shape=(1, 28, 28), samples=4096, batch_size=_BATCH)
    with attach_or_start(num_cpus=2, address="local"):
        fleet = Fleet(FleetSpec.of(workload, [Device(), Device()]))
        try:
            fleet_rate(fleet, 2.0)
            ratios = []
            before = two_plain_loops(seconds)
            for _ in range(rounds):
                ours, staleness = fleet_rate(fleet, seconds)
                after = two_plain_loops(seconds)
                ratios.append(ours / ((before + after) / 2))
                click.echo(
                    f"fleet {ours:7.0f} samples/s, plain loops before {before:7.0f} and after "
                    f"{after:7.0f}, ratio {ratios[-1]:.3f}, mean staleness {staleness:.2f}"
                )
                before = after
        finally:
            fleet.close()
    ratio = sorted(ratios)[len(ratios) // 2]
    click.echo(f"median ratio {ratio:.3f} (asked: at least 0.88); {machine()}; random input")
    click.echo(json.dumps({"benchmark": "throughput", "ratio": round(ratio, 3)}))


if __name__ == "__main__":
    main()
