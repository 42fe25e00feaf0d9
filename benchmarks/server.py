"""Time per update of the parameter server alone, beside a naive momentum actor.

    python benchmarks/server.py

Pushers compute nothing: they push the same block again and again. Naive is a plain Ray actor that
takes the gradient as a NumPy array, does ``v = m*v + g; w = w - lr*v`` and returns ``w``. Both run
in one Ray, interleaved: a warm-up round, then three rounds, medians.
"""

from __future__ import annotations

import json
import statistics
import time
from typing import Any

import click
import numpy as np
import ray
import torch
from torch import nn

from measuring import machine, spread
from omnivore_ray.cluster.exchange import (
    Push,
    accept_read_only_arrays,
    decode_answer,
    encode_push,
    fetch,
    pack,
)
from omnivore_ray.cluster.local_ray import attach_or_start
from omnivore_ray.cluster.parameter_server import ParameterServer
from omnivore_ray.strategy import Request, Strategy
from omnivore_ray.update.ledger import Answer
from omnivore_ray.workload import Workload

_SIZES = {"4 KB": 1024, "2 MB": 500_000, "60 MB": 15_000_000}
_UPDATES = {"4 KB": 400, "2 MB": 200, "60 MB": 40}
_ASKED = {"4 KB": 0.9, "60 MB": 1.3}


class Flat(nn.Module):
    """One parameter of the size wanted."""

    def __init__(self, entries: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(entries))


class NaiveServer:
    """The comparison of the issue, word for word."""

    def __init__(self, entries: int) -> None:
        self.w = np.zeros(entries, dtype=np.float32)
        self.v = np.zeros(entries, dtype=np.float32)

    def push_pull(self, g: np.ndarray) -> np.ndarray:
        self.v = 0.9 * self.v + g
        self.w = self.w - 0.001 * self.v
        return self.w


class Pusher:
    """Pushes gradients as fast as the server takes them."""

    def __init__(self, entries: int) -> None:
        accept_read_only_arrays()
        self.gradient = torch.full((entries,), 1e-3)
        self.block = self.gradient.view(torch.uint8)
        self.own = torch.empty_like(self.block)

    def naive(self, server: Any, updates: int) -> None:
        array = self.gradient.numpy()
        for _ in range(updates):
            w = ray.get(server.push_pull.remote(array))
            self.own.copy_(torch.from_numpy(w).view(torch.uint8))

    def ours(self, server: Any, number: int, request: int) -> None:
        answer = decode_answer(ray.get(server.ask.remote(number, request)))
        while not isinstance(answer, Answer):
            lease, parcel = answer
            self.own.copy_(fetch(parcel))
            del parcel, answer
            push = Push(number, request, lease.id, pack(self.block), b"\1", 1.0)
            answer = decode_answer(ray.get(server.push.remote(encode_push(push))))


def time_naive(pushers: list[Any], server: Any, updates: int) -> float:
    """Milliseconds per update."""
    start_s = time.monotonic()
    ray.get([pusher.naive.remote(server, updates // len(pushers)) for pusher in pushers])
    return (time.monotonic() - start_s) / updates * 1e3


def time_ours(pushers: list[Any], server: Any, updates: int, request: int) -> float:
    """Milliseconds per update."""
    strategy = Strategy(groups=len(pushers), learning_rate=0.001, momentum=0.9)
    ray.get(
        server.begin.remote(
            request,
            Request(kind="train", strategy=strategy, budget_updates=updates),
            groups=[[number] for number in range(len(pushers))],
            speeds=[1.0] * len(pushers),
            target=None,
            time_limit_s=None,
            own_checkpoint=None,
        )
    )
    start_s = time.monotonic()
    ray.get([pusher.ours.remote(server, n, request) for n, pusher in enumerate(pushers)])
    return (time.monotonic() - start_s) / updates * 1e3


def compare(size: str, num_pushers: int, rounds: int) -> float:
    """Prints one row of the table; returns naive over ours."""
    entries, updates = _SIZES[size], _UPDATES[size]
    workload = Workload(
        model=lambda: Flat(entries), data="none", loss=nn.functional.mse_loss, batch_size=1
    )
    naive: Any = ray.remote(NaiveServer).options(num_cpus=0).remote(entries)
    ours: Any = (
        ray.remote(ParameterServer)
        .options(num_cpus=0, max_concurrency=num_pushers + 4)
        .remote(
            workload=workload, num_rows=2**40, num_validation_rows=0, seed=0, evaluate_every_s=1e9
        )
    )
    ray.get(ours.make_model.remote())
    pushers: list[Any] = [
        ray.remote(Pusher).options(num_cpus=0).remote(entries) for _ in range(num_pushers)
    ]
    naive_ms, ours_ms = [], []
    for number in range(rounds + 1):
        naive_ms.append(time_naive(pushers, naive, updates))
        ours_ms.append(time_ours(pushers, ours, updates, number))
    for actor in (naive, ours, *pushers):
        ray.kill(actor)
    ratio = statistics.median(naive_ms[1:]) / statistics.median(ours_ms[1:])
    asked = f"asked {_ASKED[size]}" if size in _ASKED else ""
    click.echo(
        f"{size:>6} {num_pushers} pusher(s): naive {spread(naive_ms[1:])} ms, "
        f"ours {spread(ours_ms[1:])} ms, ratio {ratio:.2f} {asked}"
    )
    return ratio


@click.command()
@click.option("--rounds", default=3, show_default=True)
@click.option("--size", type=click.Choice(list(_SIZES)), multiple=True, help="Only these")
def main(rounds: int, size: tuple[str, ...]) -> None:
    ratios = {}
    with attach_or_start(num_cpus=2, address="local"):
        for name in size or _SIZES:
            for num_pushers in (1, 4):
                ratios[f"{name}, {num_pushers}"] = round(compare(name, num_pushers, rounds), 2)
    click.echo(f"milliseconds per update, medians of {rounds} rounds; {machine()}")
    click.echo(json.dumps({"benchmark": "server", "ratios": ratios}))


if __name__ == "__main__":
    main()
