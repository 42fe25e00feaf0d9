"""The simulator: events per second without gradients, samples per second with them, and memory.

    python benchmarks/simulator.py

An event is the end of a device's step or an applied update. With gradients, LeNet on 1 x 28 x 28
images is compared with a plain loop of the same batches, interleaved, medians of five rounds, in
seconds of processor time. Memory is the largest resident set of a process of its own.
"""

from __future__ import annotations

import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import click
import torch

from measuring import machine, spread
from omnivore_ray.data.datasets import as_split
from omnivore_ray.data.sampler import Sampler
from omnivore_ray.simulate.clock import timing_run
from omnivore_ray.simulate.cluster import Head, Network, VirtualCluster
from omnivore_ray.simulate.run import simulate
from omnivore_ray.simulate.service_times import ServiceTimes
from omnivore_ray.strategy import Strategy
from omnivore_ray.workload import Target
from omnivore_ray.zoo import lenet

_DEVICES = 10_000
_STEPS = 500_000
_UPDATES = 60
_ROUNDS = 5


def events_per_s(groups: int) -> float:
    """Of a timing run of 10 000 devices, setting it up included."""
    cluster = VirtualCluster.uniform(
        _DEVICES,
        10.0,
        service_times=ServiceTimes("exponential"),
        network=Network(bytes_per_s=1e12),
        head=Head(batch_s=1e-5),
    )
    updates = _STEPS * groups // _DEVICES
    begun_s = time.perf_counter()
    timing_run(
        cluster,
        groups=groups,
        batch_samples=lambda _: _DEVICES,
        copy_bytes=1e6,
        most_updates=updates,
    )
    return (_STEPS + updates) / (time.perf_counter() - begun_s)


def plain_loop_s() -> float:
    """Processor seconds of the loop that anybody would write."""
    workload = lenet("random")
    train = as_split(workload.data).train
    sampler = Sampler(train.order, len(train), workload.batch_size, 0)
    model = workload.model()
    sgd = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.5, fused=True)
    begun_s = time.process_time()
    for batch in range(_UPDATES):
        inputs, targets = train.take(sampler.rows(batch, 0, sampler.size(batch)))
        loss = workload.loss(model(inputs), targets)
        sgd.zero_grad()
        loss.backward()
        sgd.step()
        loss.item()
    return time.process_time() - begun_s


def simulated_s(devices: int, groups: int) -> float:
    """Processor seconds of the same batches on a virtual cluster."""
    cluster = VirtualCluster.uniform(devices, 1e4, service_times=ServiceTimes("exponential"))
    strategy = Strategy(groups=groups, learning_rate=0.01, momentum=0.5)
    workload = lenet("random")
    until = Target("updates", at_least=_UPDATES)
    with tempfile.TemporaryDirectory() as folder:
        begun_s = time.process_time()
        simulate(workload, cluster, strategy, until=until, path=Path(folder) / "run")
        return time.process_time() - begun_s


def memory_mb(groups: int) -> float:
    """Largest resident set of a process that simulates so many groups of one device."""
    run = subprocess.run(
        [sys.executable, __file__, "--memory-of", str(groups)],
        check=True,
        capture_output=True,
        text=True,
    )
    return float(run.stdout)


@click.command(help=__doc__)
@click.option("--memory-of", type=int, hidden=True)
def main(memory_of: int | None) -> None:
    torch.set_num_threads(1)
    if memory_of:
        global _UPDATES
        _UPDATES = memory_of * 3  # versions read are as different as they get
        simulated_s(memory_of, memory_of)
        click.echo(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
        return
    click.echo(f"measured on {machine()}")
    figures = {}
    click.echo(f"timing only, {_DEVICES} virtual devices, events per second (at least 100 000)")
    for groups in (1, 1000, _DEVICES):
        rates = [events_per_s(groups) for _ in range(3)]
        figures[f"events_per_s_{groups}"] = statistics.median(rates)
        click.echo(f"  {groups:6} groups  {spread(rates)}")
    click.echo("LeNet, simulated over plain loop, samples per processor second (at least 0.8)")
    for devices, groups in ((1, 1), (32, 1), (32, 8), (32, 32)):
        ratios = [plain_loop_s() / simulated_s(devices, groups) for _ in range(_ROUNDS)]
        figures[f"gradients_{devices}_{groups}"] = statistics.median(ratios)
        click.echo(f"  {devices:3} devices, {groups:2} groups  {spread(ratios)}")
    few, many = memory_mb(1), memory_mb(256)
    figures["memory_256_mb"] = many
    click.echo(f"memory, LeNet: 1 group {few:.0f} MB, 256 groups {many:.0f} MB (below 1500)")
    click.echo(json.dumps(figures))


if __name__ == "__main__":
    main()
