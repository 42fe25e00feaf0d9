"""Keeps a whole copy of Tune's state at all times, so that a killed driver can go on.

Tune writes its experiment and search state in place, in the background: a driver killed at the
wrong moment leaves empty files. After each of its steps the files are complete in its staging
folder; they are copied from there into a numbered folder that is renamed into place when whole.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from ray.tune import Callback

_FOLDER = "state"
_PATTERNS = ("experiment_state-*.json", "search_gen_state-*.json", "searcher-state-*.pkl")


class StateKeeper(Callback):
    """Copies Tune's state after every step that changed it.

    Args:
        folder: The run's folder.
    """

    def __init__(self, folder: Path) -> None:
        self._place = folder / _FOLDER
        self._copied = 0

    def on_step_end(self, iteration: int, trials: list[Any], **info: Any) -> None:
        """Tune's call at the end of each step of its loop."""
        if not trials:
            return
        staging = Path(trials[0].storage.experiment_driver_staging_path)
        files = [file for pattern in _PATTERNS for file in staging.glob(pattern)]
        changed = max((file.stat().st_mtime_ns for file in files), default=0)
        if changed <= self._copied:
            return
        self._copied = changed
        number = max(_numbers(self._place), default=0) + 1
        fresh = self._place / f".{number}"
        shutil.rmtree(fresh, ignore_errors=True)
        fresh.mkdir(parents=True)
        for file in files:
            shutil.copy2(file, fresh)
        fresh.rename(self._place / str(number))
        for old in _numbers(self._place):
            if old < number - 1:
                shutil.rmtree(self._place / str(old), ignore_errors=True)


def bring_back(folder: Path) -> None:
    """Puts the last whole copy where Tune looks for its state.

    Args:
        folder: The run's folder.
    """
    newest = max(_numbers(folder / _FOLDER), default=None)
    if newest is not None:
        for pattern in _PATTERNS:
            for file in folder.glob(pattern):
                file.unlink()
        for file in (folder / _FOLDER / str(newest)).iterdir():
            shutil.copy2(file, folder)


def _numbers(place: Path) -> list[int]:
    return [int(child.name) for child in place.glob("*") if child.name.isdecimal()]
