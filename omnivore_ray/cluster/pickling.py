"""Says which part of an object cannot be pickled, before it is sent anywhere."""

from __future__ import annotations

from typing import Any

from ray import cloudpickle

_DEPTH = 4


def check_picklable(value: Any, where: str) -> None:
    """Refuses what cannot travel to the actors.

    Args:
        value: The object.
        where: What to call it in the error.

    Raises:
        ValueError: Naming the innermost attribute found that cannot be pickled.
    """
    error = _error(value)
    if error is not None:
        place, kind, error = _innermost(value, where, error, _DEPTH)
        raise ValueError(
            f"{place} is a {kind}, which cannot be pickled and so cannot be sent to the workers "
            f"({type(error).__name__}: {error}); make it inside the model or the data set, "
            "or leave it out in __getstate__"
        ) from error


def is_picklable(value: Any) -> bool:
    """Whether the object can travel to another process and arrive there."""
    try:
        cloudpickle.loads(cloudpickle.dumps(value))
    except Exception:  # some exceptions can be written but not read back
        return False
    return True


def _innermost(value: Any, where: str, error: Exception, depth: int) -> tuple[str, str, Exception]:
    for name, part in _parts(value):
        inner = _error(part)
        if inner is not None and depth:
            return _innermost(part, f"{where}{name}", inner, depth - 1)
    return where, type(value).__name__, error


def _parts(value: Any) -> list[tuple[str, Any]]:
    if isinstance(value, dict):
        return [(f"[{key!r}]", part) for key, part in value.items()]
    if isinstance(value, (list, tuple, set)):
        return [(f"[{index}]", part) for index, part in enumerate(value)]
    closure = getattr(value, "__closure__", None)
    if closure:
        names = value.__code__.co_freevars
        return [
            (f" uses {name!r}:", cell.cell_contents)
            for name, cell in zip(names, closure, strict=True)
        ]
    parts = []
    for name, part in getattr(value, "__dict__", {}).items():
        if name in ("_modules", "_parameters", "_buffers") and isinstance(part, dict):
            parts += [(f".{inner}", item) for inner, item in part.items()]
        else:
            parts.append((f".{name}", part))
    return parts


def _error(value: Any) -> Exception | None:
    try:
        cloudpickle.dumps(value)
    except Exception as error:  # any exception at all means that it cannot be sent
        return error
    return None
