"""Strategy, Request and Outcome: the words the algorithm and the cluster exchange.

The search algorithm speaks only in these; so it drives a Ray fleet, a simulated cluster and a
test double without knowing which.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

RequestKind = Literal["probe", "train"]
Status = Literal["completed", "target_reached", "out_of_time", "diverged", "failed", "interrupted"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Strategy:
    """How asynchronous to be, and the two hyper-parameters that depend on it.

    Attributes:
        groups: Number of compute groups; 1 is synchronous, one per device fully asynchronous.
        learning_rate: Step size of the server's SGD, > 0.
        momentum: Explicit momentum of the server's SGD, in (-1, 1). Negative values compensate
            for the implicit momentum of asynchrony.
    """

    groups: int = 1
    learning_rate: float
    momentum: float = 0.0

    def __post_init__(self) -> None:
        if isinstance(self.groups, bool) or not isinstance(self.groups, int) or self.groups < 1:
            raise ValueError(f"Strategy.groups={self.groups!r}: give a whole number of at least 1")
        if not _is_number(self.learning_rate) or not self.learning_rate > 0:
            raise ValueError(
                f"Strategy.learning_rate={self.learning_rate!r}: give a finite number above 0"
            )
        if not _is_number(self.momentum) or not -1 < self.momentum < 1:
            raise ValueError(
                f"Strategy.momentum={self.momentum!r}: give a number above -1 and below 1"
            )

    def __str__(self) -> str:
        return (
            f"groups={self.groups}, learning_rate={self.learning_rate:g}, "
            f"momentum={self.momentum:g}"
        )

    @classmethod
    def parse(cls, text: str) -> Strategy:
        """Reads ``groups=2,learning_rate=0.05,momentum=0.6``, the form of the command line.

        Raises:
            ValueError: A part is not ``name=number``, or its name is unknown.
        """
        values: dict[str, Any] = {}
        for part in text.split(","):
            name, separator, number = (piece.strip() for piece in part.partition("="))
            if not separator or name not in ("groups", "learning_rate", "momentum"):
                raise ValueError(
                    f"strategy={text!r}: {part.strip()!r} is not one of groups=, learning_rate=, "
                    "momentum=; write for example groups=2,learning_rate=0.05,momentum=0.6"
                )
            try:
                values[name] = int(number) if name == "groups" else float(number)
            except ValueError:
                raise ValueError(f"strategy={text!r}: {number!r} is not a number") from None
        if "learning_rate" not in values:
            raise ValueError(f"strategy={text!r}: learning_rate= is missing")
        return cls(**values)


@dataclass(frozen=True, kw_only=True, slots=True)
class Request:
    """What the algorithm asks for next.

    Attributes:
        kind: "probe" (short, to measure) or "train" (long, to progress).
        strategy: The strategy to run.
        round: Number of the re-optimisation this belongs to; 0 is the cold start.
        budget_updates: Updates to apply, or None.
        budget_s: Seconds to run, or None. With both, the first one reached ends the request;
            with neither, only the run's own target or time limit does.
        resume_from: ``Outcome.checkpoint_path`` of the request whose final state is the start;
            None starts from the initial parameters. Opaque to the algorithm.
        reason: Why this is asked for, in words.
    """

    kind: RequestKind
    strategy: Strategy
    round: int = 0
    budget_updates: int | None = None
    budget_s: float | None = None
    resume_from: str | None = None
    reason: str = ""

    def __post_init__(self) -> None:
        if self.kind not in ("probe", "train"):
            raise ValueError(f"Request.kind={self.kind!r}: give 'probe' or 'train'")
        if self.budget_updates is not None and self.budget_updates < 1:
            raise ValueError(f"Request.budget_updates={self.budget_updates!r}: give at least 1")
        if self.budget_s is not None and not self.budget_s > 0:
            raise ValueError(f"Request.budget_s={self.budget_s!r}: give more than 0 seconds")

    def to_config(self) -> dict[str, Any]:
        """The flat form that travels as a Tune trial's config."""
        config = asdict(self)
        config.update(config.pop("strategy"))
        return config

    @staticmethod
    def config_keys() -> tuple[str, ...]:
        """The keys of `to_config`."""
        return (*_STRATEGY_FIELDS, *_REQUEST_FIELDS)

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Request:
        """The inverse of `to_config`; keys that are not ours are ignored, missing ones default.

        Raises:
            ValueError: ``learning_rate`` is missing, or a value is not legal.
        """
        if "learning_rate" not in config:
            raise ValueError(
                f"config={dict(config)!r}: 'learning_rate' is missing; a request needs at least "
                "groups, learning_rate and momentum"
            )
        fields = {name: config[name] for name in _STRATEGY_FIELDS if name in config}
        rest = {name: config[name] for name in _REQUEST_FIELDS if config.get(name) is not None}
        rest.setdefault("kind", "train")
        return cls(strategy=Strategy(**fields), **rest)


_STRATEGY_FIELDS = ("groups", "learning_rate", "momentum")
_REQUEST_FIELDS = ("kind", "round", "budget_updates", "budget_s", "resume_from", "reason")


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """What became of a request.

    Attributes:
        status: "completed" (its budget is used up), "target_reached" or "out_of_time" (the run's
            target or time limit: nothing more will run), "diverged" (loss or gradient not finite,
            or exploding), "failed" (the cluster could not finish it) or "interrupted".
        updates: Updates applied by this request.
        samples: Samples those updates used.
        seconds: From the first lease of every member to the end, on the run's clock.
        loss: Smoothed training loss at the end; nan when no update was applied.
        curve: ``(updates, seconds, loss)`` points since the request began; each loss is the mean
            over the updates since the point before. At most a few hundred points.
        metrics: The last validation metrics, if any were measured.
        checkpoint_path: Opaque name of the state the request ended in, for ``resume_from``;
            None when that state is not worth resuming (diverged) or was not kept.
        reason: What ended it, in words.
    """

    status: Status
    updates: int = 0
    samples: int = 0
    seconds: float = 0.0
    loss: float = math.nan
    curve: tuple[tuple[int, float, float], ...] = ()
    metrics: Mapping[str, float] = field(default_factory=dict)
    checkpoint_path: str | None = None
    reason: str = ""

    @property
    def seconds_per_update(self) -> float | None:
        """Measured hardware efficiency, or None when no update was applied."""
        return self.seconds / self.updates if self.updates else None

    @property
    def ok(self) -> bool:
        """Whether the state at the end is one to go on from."""
        return self.status in ("completed", "target_reached", "out_of_time")

    @property
    def ends_run(self) -> bool:
        """Whether nothing more will run, whatever is asked for."""
        return self.status in ("target_reached", "out_of_time")

    def to_json(self) -> dict[str, Any]:
        """A JSON object."""
        return {**asdict(self), "metrics": dict(self.metrics)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Outcome:
        """The inverse of `to_json`."""
        return cls(**{**data, "curve": tuple(tuple(point) for point in data["curve"])})


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
