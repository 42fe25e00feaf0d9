"""Results of runs that are never run twice: JSON files named after a hash of what was run."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

import omnivore_ray
from omnivore_ray.data.datasets import as_split
from omnivore_ray.data.sources import Source
from omnivore_ray.update.parameters import Parameters
from omnivore_ray.workload import Workload

_ROWS_LOOKED_AT = 64


class Cache:
    """A folder of results.

    Args:
        folder: Made when the first result is written.
    """

    def __init__(self, folder: Path | str) -> None:
        self._folder = Path(folder).expanduser()

    def get(
        self, configuration: Mapping[str, Any], run: Callable[[], dict[str, Any]]
    ) -> dict[str, Any]:
        """The result of a configuration; runs it if it is not there, or cannot be read.

        Args:
            configuration: JSON values that decide the result.
            run: Makes it, as JSON values.
        """
        text = json.dumps(configuration, sort_keys=True)
        place = self._folder / f"{hashlib.sha256(text.encode()).hexdigest()[:32]}.json"
        try:
            content = json.loads(place.read_text())
            if content["configuration"] == json.loads(text):
                return dict(content["result"])
        except (OSError, ValueError, LookupError, TypeError):
            pass  # not there, or cut short by a crash
        result = run()
        self._folder.mkdir(parents=True, exist_ok=True)
        fresh = place.with_suffix(f".{os.getpid()}")
        fresh.write_text(json.dumps({"configuration": configuration, "result": result}, indent=1))
        os.replace(fresh, place)
        return result


def fingerprint(workload: Workload) -> dict[str, Any]:
    """What tells one workload from another, as JSON values.

    Model and data by checksums of the initial parameters under seed 0 and of some rows; loss,
    metrics and a callable optimizer by their names only, so a change inside them is not seen.
    """
    torch.manual_seed(0)
    block = Parameters(workload.model(), workload.optimizer).block
    split = as_split(workload.data)
    optimizer = workload.optimizer
    return {
        "package": omnivore_ray.__version__,
        "name": workload.name,
        "batch_size": workload.batch_size,
        "loss": _name(workload.loss),
        "metrics": {name: _name(metric) for name, metric in workload.metrics.items()},
        "optimizer": _name(optimizer) if callable(optimizer) else dict(optimizer),
        "model": hashlib.sha256(block.numpy().tobytes()).hexdigest(),
        "train": _rows(split.train),
        "validation": None if split.validation is None else _rows(split.validation),
    }


def _rows(source: Source) -> list[Any]:
    """Number of rows, and a checksum of some of them."""
    count = len(source)
    batch = source.take(np.unique(np.linspace(0, count - 1, _ROWS_LOOKED_AT).astype(np.int64)))
    values = batch.items() if isinstance(batch, dict) else enumerate(batch)
    checksum = hashlib.sha256()
    for name, value in values:
        checksum.update(str(name).encode())
        is_tensor = isinstance(value, torch.Tensor)
        checksum.update(value.numpy().tobytes() if is_tensor else repr(value).encode())
    return [count, checksum.hexdigest()]


def _name(function: Any) -> str:
    named = getattr(function, "func", function)
    return f"{getattr(named, '__module__', '')}.{getattr(named, '__qualname__', repr(named))}"
