"""Workload and Target: what to train, and when it is good enough."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    import torch

#: The strategy's own values, which are metrics too.
STRATEGY_METRICS = ("groups", "learning_rate", "momentum")

#: Metric keys every run has; a workload's own metrics may not use these names.
RUN_METRICS = (
    "loss",
    "updates",
    "samples",
    "seconds",
    "samples_per_s",
    "seconds_per_update",
    "staleness_mean",
    "bytes_per_update",
    *STRATEGY_METRICS,
)

#: Arguments of torch.optim.SGD that are not the workload's to set.
_OWNED_OPTIONS = {
    "lr": "the strategy's learning_rate sets it (parameter groups may give lr as a ratio)",
    "momentum": "the strategy's momentum sets it",
    "fused": "the server always runs the fused kernel",
    "foreach": "the server always runs the fused kernel",
    "differentiable": "updates are never differentiated",
    "params": "give a callable (model) -> parameter groups instead",
}
_SGD_OPTIONS = ("weight_decay", "dampening", "nesterov", "maximize")


@dataclass(frozen=True, kw_only=True)
class Workload:
    """A model, its data and its loss: everything about training except how fast it goes.

    Attributes:
        model: Zero-argument callable returning a ``torch.nn.Module``; called once per fleet,
            under the run's seed.
        data: Training source, or ``datasets.Split(train=..., validation=...)``; see
            `omnivore_ray.data`.
        loss: ``(outputs, targets) -> scalar tensor``, the *mean* over the samples.
        metrics: Name to ``(outputs, targets) -> scalar mean``, measured on validation data.
        optimizer: What ``torch.optim.SGD`` takes besides lr and momentum (weight_decay,
            dampening, nesterov, maximize), or a callable ``model -> list of parameter-group
            dicts``. Either every group has an ``lr`` or none; the groups keep the ratio of
            their ``lr`` to the first group's, whose value the strategy sets.
        batch_size: Samples per update, whatever the number of groups.
        head: "auto", None, or the name of the first module of the head.
        target: Name of the targets in a dict batch; the other entries are passed to the model
            by name. In a tuple batch the last entry holds the targets.
        name: Used in folder names and tables.
    """

    model: Callable[[], torch.nn.Module]
    data: Any
    loss: Callable[[Any, Any], torch.Tensor]
    metrics: Mapping[str, Callable[[Any, Any], Any]] = field(default_factory=dict)
    optimizer: Mapping[str, Any] | Callable[[torch.nn.Module], list[dict[str, Any]]] = field(
        default_factory=dict
    )
    batch_size: int = 64
    head: str | None = "auto"
    target: str = "target"
    name: str = "workload"

    def __post_init__(self) -> None:
        for argument in ("model", "loss"):
            if not callable(getattr(self, argument)):
                raise ValueError(
                    f"Workload.{argument}={getattr(self, argument)!r} is not callable; "
                    + (
                        "give a zero-argument callable that returns a module, e.g. the class"
                        if argument == "model"
                        else "give a callable (outputs, targets) -> scalar"
                    )
                )
        if _is_module(self.model):
            raise ValueError(
                "Workload.model is a module; give a zero-argument callable that makes one, "
                "e.g. model=lambda: net"
            )
        if self.data is None:
            raise ValueError("Workload.data=None: give a source or datasets.Split(train=...)")
        batch_size = self.batch_size
        if isinstance(batch_size, bool) or not isinstance(batch_size, int) or batch_size < 1:
            raise ValueError(
                f"Workload.batch_size={batch_size!r}: give a whole number of at least 1"
            )
        if not isinstance(self.metrics, Mapping):
            raise ValueError(f"Workload.metrics={self.metrics!r}: give a dict of name to callable")
        for name, metric in self.metrics.items():
            if not isinstance(name, str) or name in RUN_METRICS:
                raise ValueError(
                    f"Workload.metrics has the name {name!r}, which every run uses itself; "
                    "choose another, e.g. 'validation_loss'"
                )
            if not callable(metric):
                raise ValueError(
                    f"Workload.metrics[{name!r}]={metric!r} is not callable; "
                    "give a callable (outputs, targets) -> scalar"
                )
        if not callable(self.optimizer):
            check_optimizer_options(self.optimizer, "Workload.optimizer")
        if self.head is not None and not isinstance(self.head, str):
            raise ValueError(
                f"Workload.head={self.head!r}: give 'auto', None or the name of a module"
            )
        if not isinstance(self.name, str) or not re.fullmatch(r"[A-Za-z0-9._-]{1,80}", self.name):
            raise ValueError(
                f"Workload.name={self.name!r}: use letters, digits, '.', '_' and '-' only"
            )


def check_optimizer_options(options: Any, where: str) -> None:
    """Refuses SGD options that the run itself owns, or that SGD does not have.

    Raises:
        ValueError: Naming the option and why.
    """
    if not isinstance(options, Mapping):
        raise ValueError(
            f"{where}={options!r}: give a dict of torch.optim.SGD options or a callable "
            "(model) -> list of parameter groups"
        )
    for name in options:
        if name in _OWNED_OPTIONS:
            raise ValueError(f"{where} sets {name!r}; {_OWNED_OPTIONS[name]}")
        if name not in _SGD_OPTIONS:
            raise ValueError(
                f"{where} sets {name!r}, which torch.optim.SGD does not take; "
                f"known: {', '.join(_SGD_OPTIONS)}"
            )


@dataclass(frozen=True, slots=True)
class Target:
    """When a run is good enough: ``Target("accuracy", at_least=0.97)``.

    Attributes:
        metric: A workload metric (judged at each validation) or a run metric: ``loss`` (smoothed
            training loss), ``updates``, ``samples``, ``seconds``.
        at_least: Reached when the metric is at or above this.
        at_most: Reached when the metric is at or below this.
    """

    metric: str
    at_least: float | None = None
    at_most: float | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.metric, str) or not self.metric:
            raise ValueError(f"Target.metric={self.metric!r}: give the name of a metric")
        bounds = [bound for bound in (self.at_least, self.at_most) if bound is not None]
        if len(bounds) != 1:
            raise ValueError(f"Target({self.metric!r}): give exactly one of at_least= and at_most=")
        bound = bounds[0]
        if isinstance(bound, bool) or not isinstance(bound, (int, float)) or math.isnan(bound):
            raise ValueError(f"Target({self.metric!r}): the bound {bound!r} is not a number")

    def __str__(self) -> str:
        if self.at_least is not None:
            return f"{self.metric}>={self.at_least:g}"
        return f"{self.metric}<={self.at_most:g}"

    @property
    def mode(self) -> Literal["min", "max"]:
        """Which way is better."""
        return "max" if self.at_least is not None else "min"

    @property
    def bound(self) -> float:
        """The value that has to be met."""
        bound = self.at_least if self.at_least is not None else self.at_most
        assert bound is not None
        return bound

    def reached(self, value: float) -> bool:
        """Whether ``value`` meets the target; nan never does."""
        return value >= self.bound if self.mode == "max" else value <= self.bound

    def check(self, workload: Workload) -> None:
        """Refuses a metric the workload does not have.

        Raises:
            ValueError: Listing the known names.
        """
        known = (*workload.metrics, "loss", "updates", "samples", "seconds")
        if self.metric not in known:
            raise ValueError(
                f"until={self}: unknown metric {self.metric!r}; this workload has "
                f"{', '.join(known)}"
            )

    @classmethod
    def parse(cls, text: str) -> Target:
        """Reads ``accuracy>=0.97`` or ``loss<=0.05``.

        Raises:
            ValueError: The text is not ``metric>=number`` or ``metric<=number``.
        """
        match = re.fullmatch(r"\s*(\w+)\s*(>=|<=)\s*([-+.\deE]+)\s*", text)
        try:
            assert match is not None
            bound = float(match[3])
        except (AssertionError, ValueError):
            raise ValueError(
                f"until={text!r}: write metric>=number or metric<=number, e.g. 'accuracy>=0.97'"
            ) from None
        return cls(match[1], **{"at_least" if match[2] == ">=" else "at_most": bound})


def _is_module(value: object) -> bool:
    """Whether ``value`` is a torch module, without importing torch for those who have not."""
    import sys

    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.nn.Module)
