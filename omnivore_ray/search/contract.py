"""What every strategy search looks like from outside: ask, tell, and nothing else."""

from __future__ import annotations

from typing import Any, Protocol

from omnivore_ray.strategy import Outcome, Request, Strategy


class Algorithm(Protocol):
    """A search that wants one request carried out at a time.

    Attributes:
        failure: Why the search gave up, in words; None while it has not. When set, `ask` returns
            None and the experiment should end with this text as its error.
        best: The strategy to recommend now; None before anything has trained.
    """

    @property
    def failure(self) -> str | None: ...

    @property
    def best(self) -> Strategy | None: ...

    def ask(self) -> Request | None:
        """The request to carry out now; the same one until it is told; None when finished."""
        ...

    def tell(self, request: Request, outcome: Outcome) -> None:
        """Reports what became of the live request; a repeated report is ignored."""
        ...

    def decisions(self) -> list[dict[str, Any]]:
        """One row per request told so far, oldest first."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """Everything needed to go on elsewhere; strict JSON."""
        ...

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on where the search that gave ``state`` was."""
        ...
