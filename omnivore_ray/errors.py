"""The one exception type for faults that are not the caller's input."""

from __future__ import annotations

from typing import Any


class OmnivoreError(RuntimeError):
    """What the cluster, or the user's own code on it, did to a run.

    User input that can be judged before anything starts raises ValueError instead. The exception
    that caused the fault, if there was one, is in ``__cause__`` and survives the trip between
    processes.
    """

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.args, self.__cause__)


def _rebuild(
    kind: type[OmnivoreError], args: tuple[Any, ...], cause: BaseException | None
) -> OmnivoreError:
    error = kind(*args)
    error.__cause__ = cause
    return error
