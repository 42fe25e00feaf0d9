"""A checkpoint is a folder: model.safetensors, optimizer.safetensors, state.json, history.parquet.

``model.safetensors`` is a plain state_dict: it loads strictly into the user's own module without
this package. Nothing is ever unpickled. A folder is complete or not there: it is written beside
its place and renamed. Between the two renames of a replacement the new one is read from beside.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow
import safetensors
import safetensors.torch
import torch

from omnivore_ray.errors import OmnivoreError
from omnivore_ray.update.history import History
from omnivore_ray.update.parameters import Parameters
from omnivore_ray.update.run_state import RunState

_FORMAT = 1
_MAX_STATE_BYTES = 16 * 2**20
_KEPT = {"probe": 0, "train": 3}


def write_checkpoint(
    path: Path | str,
    parameters: Parameters | None,
    state: RunState,
    history: History,
    extra: Mapping[str, Any],
) -> None:
    """Writes a checkpoint folder, replacing one of the same name.

    Args:
        path: The folder; its parents are made.
        parameters: Written as they are now; None leaves the tensors out, when the state is not
            one to go on from.
        state: Where the run stands.
        history: Rows of the request.
        extra: JSON values beside the state: run seconds, the request and what it used.

    Raises:
        OmnivoreError: The folder cannot be written (disk full, no permission).
    """
    place = Path(path)
    fresh, old = _beside(place)
    try:
        if _complete(place) != place:  # a crash between the renames
            os.replace(_complete(place), place)
        for leftover in (fresh, old):
            shutil.rmtree(leftover, ignore_errors=True)
        fresh.mkdir(parents=True)
        if parameters is not None:
            _save(parameters.state_dict(), fresh / "model.safetensors")
            _save(parameters.velocity(), fresh / "optimizer.safetensors")
        history.write(fresh / "history.parquet")
        content = {"format": _FORMAT, "state": state.to_json(), **extra}
        (fresh / "state.json").write_text(json.dumps(content, indent=1))
        if place.exists():
            os.replace(place, old)
        os.replace(fresh, place)
        shutil.rmtree(old, ignore_errors=True)
    except (OSError, safetensors.SafetensorError) as error:
        shutil.rmtree(fresh, ignore_errors=True)
        raise OmnivoreError(f"checkpoint {place} cannot be written: {error}") from error


def is_checkpoint(path: Path | str) -> bool:
    """Whether the folder holds a state that can be resumed."""
    return (_complete(path) / "model.safetensors").is_file()


def prune_checkpoints(folder: Path | str) -> None:
    """Removes tensors that a search has trained past; the histories stay.

    To be called when a long stretch has gone well: the probes before it are then of no more use,
    while before that any of them may be extended or be the state to go back to. The `_KEPT`
    "train" states written or resumed from last are kept. Damaged folders are left alone.
    """
    by_kind: dict[str, list[tuple[float, Path]]] = {}
    for place in Path(folder).iterdir():
        if is_checkpoint(place) and not place.name.startswith("."):
            with contextlib.suppress(OmnivoreError):
                kind = read_state(place)[1].get("request", {}).get("kind", "")
                by_kind.setdefault(str(kind), []).append((place.stat().st_mtime, place))
    for kind, kept in _KEPT.items():
        places = sorted(by_kind.get(kind, []))
        for _, place in places[: len(places) - kept]:
            for name in ("model.safetensors", "optimizer.safetensors"):
                (place / name).unlink(missing_ok=True)


def read_state(path: Path | str) -> tuple[RunState, dict[str, Any]]:
    """The run state of a checkpoint folder, and what was written beside it.

    Raises:
        OmnivoreError: The folder is missing or damaged.
    """
    file = _complete(path) / "state.json"
    try:
        if file.stat().st_size > _MAX_STATE_BYTES:
            raise ValueError(f"larger than {_MAX_STATE_BYTES} bytes")
        content = json.loads(file.read_text())
        if content.pop("format") != _FORMAT:
            raise ValueError(f"not of format {_FORMAT}")
        for name, kind in (("seconds", (int, float)), ("used_s", (int, float)), ("request", dict)):
            if name in content and not isinstance(content[name], kind):
                raise ValueError(f"{name}={content[name]!r}")
        return RunState.from_json(content.pop("state")), content
    except (OSError, LookupError, ValueError, TypeError, AttributeError, RecursionError) as error:
        raise OmnivoreError(f"checkpoint {path} cannot be read: {file.name}: {error}") from error


def read_tensors(path: Path | str, name: str) -> dict[str, torch.Tensor]:
    """The tensors of ``model.safetensors`` or ``optimizer.safetensors`` of a checkpoint folder.

    Raises:
        OmnivoreError: The file is missing or damaged.
    """
    try:
        return safetensors.torch.load_file(_complete(path) / name)
    except (OSError, safetensors.SafetensorError, LookupError, ValueError, RuntimeError) as error:
        raise OmnivoreError(f"checkpoint {path} cannot be read: {name}: {error}") from error


def read_history(path: Path | str) -> History:
    """The rows of a checkpoint folder's request so far.

    Raises:
        OmnivoreError: The file is missing or damaged.
    """
    try:
        return History.read(_complete(path) / "history.parquet")
    except (OSError, LookupError, ValueError, TypeError, pyarrow.ArrowException) as error:
        raise OmnivoreError(f"checkpoint {path} cannot be read: history: {error}") from error


def load_checkpoint(path: Path | str, parameters: Parameters) -> tuple[RunState, dict[str, Any]]:
    """Puts a checkpoint into ``parameters``.

    Returns:
        The run state, and what was written beside it.

    Raises:
        OmnivoreError: The folder is missing, damaged, or of another model.
    """
    state, extra = read_state(path)
    with contextlib.suppress(OSError):
        os.utime(_complete(path))  # used: to be kept by `prune_checkpoints`
    model = read_tensors(path, "model.safetensors")
    velocity = read_tensors(path, "optimizer.safetensors")
    try:
        parameters.load(model, velocity)
    except ValueError as error:
        raise OmnivoreError(f"checkpoint {path} does not fit the workload: {error}") from error
    return state, extra


def _beside(place: Path) -> tuple[Path, Path]:
    """Where the new folder is built, and where the old one waits to be removed."""
    return place.with_name(f".{place.name}.new"), place.with_name(f".{place.name}.old")


def _complete(path: Path | str) -> Path:
    """The folder to read: the new one where a crash kept it from its place."""
    place = Path(path)
    fresh, old = _beside(place)
    if place.exists() or not old.exists():
        return place
    return fresh if fresh.exists() else old


def _save(tensors: Mapping[str, torch.Tensor], file: Path) -> None:
    # clones: safetensors refuses tensors that share storage, as all of ours (and tied ones) do
    plain = {name: tensor.detach().clone().contiguous() for name, tensor in tensors.items()}
    safetensors.torch.save_file(plain, file)
