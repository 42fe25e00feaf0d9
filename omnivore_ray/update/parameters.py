"""The server's parameters: one flat block, one torch SGD, one velocity for all groups.

The block holds what travels: trainable parameters and buffers (BatchNorm statistics and the
like). The module's own tensors are views into it, so its ``state_dict`` is always current.

Learning rate, momentum, weight decay and parameter groups mean what they mean in any PyTorch
script, because torch's own ``sgd``, the functional form of ``torch.optim.SGD``, makes the update
(the class costs four times as much on small models). A parameter without a gradient is left
alone, weight decay or not, as torch would.

Buffers of a batch are merged so that every group counts: where a group started from statistics
``r0`` and ended at ``r1`` while the server has moved on to ``r``, the server takes
``r1 + a (r - r0)``, with ``a = 1 - momentum`` for BatchNorm statistics (exactly what the two
batches one after the other would have given) and ``a = 1`` for anything else, counters included.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.optim.sgd import sgd

from omnivore_ray.update.layout import Layout
from omnivore_ray.workload import check_optimizer_options

_SGD_OPTIONS = ("weight_decay", "dampening", "nesterov", "maximize")


@dataclass(frozen=True, kw_only=True, slots=True)
class Contribution:
    """What one device computed on its rows of a batch.

    Attributes:
        block: Gradients (already weighted by the share of the batch) and buffers after the
            step, in the layout of `Parameters`, shape ``(nbytes,)``, uint8; only read.
        present: One byte a tensor of the layout: 1 where there is a gradient, or where the
            buffer changed. Absent gradients must be zero in the block.
        weight: Share of the batch, in (0, 1].
    """

    block: torch.Tensor
    present: bytes
    weight: float


class Parameters:
    """Parameters and optimizer of one model.

    Args:
        model: The module; its tensors are moved into the block.
        optimizer: ``Workload.optimizer``.

    Raises:
        ValueError: The model or the optimizer options cannot be supported; says which and why.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: Mapping[str, Any] | Callable[[nn.Module], list[dict[str, Any]]],
    ) -> None:
        check_model(model)
        self.model = model.to("cpu")
        self._trainable = {n: p for n, p in model.named_parameters() if p.requires_grad}
        self._buffers = {n: b for n, b in model.named_buffers() if b is not None}
        if not self._trainable:
            raise ValueError("Workload.model has no parameter that requires a gradient")
        tensors = {**self._trainable, **self._buffers}
        self.layout = Layout.of(tensors)
        self.block = self.layout.zeros()
        self._views = self.layout.views(self.block)
        for name, tensor in tensors.items():
            self._views[name].copy_(tensor.detach())
            tensor.data = self._views[name]
        self._keep = _buffer_retention(model)
        self._groups = _parameter_groups(model, self._trainable, optimizer)
        self._velocity: dict[str, torch.Tensor] = {}
        self.initial = self.snapshot()

    def set_strategy(self, learning_rate: float, momentum: float) -> None:
        """Takes effect on the very next update."""
        for group in self._groups:
            group.options.update(lr=learning_rate * group.rate_ratio, momentum=momentum)

    def buffers(self) -> dict[str, torch.Tensor]:
        """Copies of the buffers, to hand to `update` with what was computed from them."""
        return {name: self._views[name].clone() for name in self._buffers}

    def update(
        self, parts: Sequence[Contribution], buffers_read: Mapping[str, torch.Tensor]
    ) -> None:
        """Applies one update from all parts of one batch.

        Args:
            parts: In the order of their rows; their weights sum to 1.
            buffers_read: `buffers()` of the version the parts were computed at.
        """
        present = {
            name
            for part in parts
            for name, flag in zip(self.layout.names, part.present, strict=True)
            if flag
        }
        self._merge_buffers(parts, buffers_read, present)
        given = [part.block for part in parts if any(part.present)] or [parts[0].block]
        total = given[0]
        if len(given) > 1:
            total = total.clone()
            for block in given[1:]:
                self.layout.add(total, block)
        gradients = self.layout.views(total)
        for group in self._groups:
            names = [name for name in group.names if name in present]
            old = [name for name in names if name in self._velocity]
            new = [name for name in names if name not in self._velocity]
            for some in (old, new):  # the kernel wants all of a call's velocities, or none
                if some:
                    self._step(some, gradients, group.options)

    @torch.no_grad()
    def _step(
        self, names: list[str], gradients: Mapping[str, torch.Tensor], options: dict[str, Any]
    ) -> None:
        velocities = [self._velocity.get(name) for name in names]
        sgd(
            [self._trainable[name] for name in names],
            [gradients[name] for name in names],
            velocities,
            has_sparse_grad=False,
            foreach=False,
            fused=True,
            **options,
        )
        if options["momentum"] != 0:
            self._velocity.update(zip(names, velocities, strict=True))  # type: ignore[arg-type]

    def _merge_buffers(
        self,
        parts: Sequence[Contribution],
        buffers_read: Mapping[str, torch.Tensor],
        present: set[str],
    ) -> None:
        changed = [name for name in self._buffers if name in present]
        if not changed:
            return
        pushed = [self.layout.views(part.block) for part in parts]
        for name in changed:
            now, read = self._views[name], buffers_read[name]
            index = self.layout.names.index(name)
            # a part may leave out what it did not change: there it counts with what it read
            ends = [
                views[name] if part.present[index] else read
                for part, views in zip(parts, pushed, strict=True)
            ]
            if now.dtype == torch.bool:
                now.copy_(ends[-1])
                continue
            exact = torch.float64 if not now.is_complex() else torch.complex128
            merged = self._keep.get(name, 1.0) * (now.to(exact) - read.to(exact))
            for part, end in zip(parts, ends, strict=True):
                merged += part.weight * end.to(exact)
            now.copy_(merged if now.is_floating_point() or now.is_complex() else merged.round())

    # -- state as plain tensors -----------------------------------------------------------------

    def snapshot(self) -> Snapshot:
        """A copy of everything that an update changes."""
        velocity = {name: buffer.clone() for name, buffer in self.velocity().items()}
        return Snapshot(block=self.block.clone(), velocity=velocity)

    def restore(self, snapshot: Snapshot) -> None:
        """Returns to the state of a snapshot of the same model."""
        self.block.copy_(snapshot.block)
        self._set_velocity(snapshot.velocity)

    def state_dict(self) -> dict[str, torch.Tensor]:
        """The module's plain state_dict; the tensors are live."""
        return self.model.state_dict()

    def velocity(self) -> dict[str, torch.Tensor]:
        """Momentum buffers by parameter name; the tensors are live."""
        return dict(self._velocity)

    def load(self, state: Mapping[str, torch.Tensor], velocity: Mapping[str, torch.Tensor]) -> None:
        """Takes over a state_dict and momentum buffers, in place.

        Raises:
            ValueError: Names, shapes or dtypes are not this model's.
        """
        own = self.model.state_dict()
        _check_tensors("model.safetensors", state, own, complete=True)
        _check_tensors("optimizer.safetensors", velocity, self._trainable, complete=False)
        with torch.no_grad():
            for name, tensor in own.items():
                tensor.copy_(state[name])
        self._set_velocity(velocity)

    def _set_velocity(self, velocity: Mapping[str, torch.Tensor]) -> None:
        self._velocity = {name: buffer.clone() for name, buffer in velocity.items()}


@dataclass(frozen=True, kw_only=True, slots=True)
class Snapshot:
    """Parameters, buffers and velocity at one version.

    Attributes:
        block: Shape ``(nbytes,)``, uint8.
        velocity: Momentum buffer of each parameter that has one.
    """

    block: torch.Tensor
    velocity: Mapping[str, torch.Tensor]


def check_model(model: Any) -> None:
    """Refuses, in one sentence, what cannot be trained in groups.

    Raises:
        ValueError: Naming the module or parameter, and the fix.
    """
    if not isinstance(model, nn.Module):
        raise ValueError(f"Workload.model returned {type(model).__name__}, not a torch.nn.Module")
    for name, module in model.named_modules():
        if getattr(module, "sparse", False) and isinstance(module, (nn.Embedding, nn.EmbeddingBag)):
            raise ValueError(
                f"module {name!r} has sparse gradients, which groups cannot merge; "
                "build it with sparse=False"
            )
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        if isinstance(tensor, (nn.UninitializedParameter, nn.UninitializedBuffer)):
            raise ValueError(
                f"{name!r} has no shape yet (a lazy module); run one batch through the model "
                "inside Workload.model"
            )
        if tensor.layout != torch.strided:
            raise ValueError(f"{name!r} has layout {tensor.layout}; make it dense (strided)")
        if tensor.device.type == "meta":
            raise ValueError(f"{name!r} is on the meta device; build the model with real storage")
        if tensor.is_complex() and tensor.requires_grad:
            raise ValueError(f"{name!r} is complex; use a pair of real parameters")
    for name, value in model.state_dict().items():
        if not isinstance(value, torch.Tensor):
            raise ValueError(
                f"{name!r} in the state_dict is a {type(value).__name__}, not a tensor; "
                "checkpoints hold tensors only"
            )


def _buffer_retention(model: nn.Module) -> dict[str, float]:
    """How much of its old value a running statistic keeps per batch, by buffer name."""
    keep = {}
    for prefix, module in model.named_modules():
        if isinstance(module, nn.modules.batchnorm._NormBase) and module.momentum is not None:
            for name in ("running_mean", "running_var"):
                keep[f"{prefix}.{name}" if prefix else name] = 1.0 - module.momentum
    return keep


@dataclass(frozen=True, kw_only=True, slots=True)
class _Group:
    """Parameters that share options.

    Attributes:
        names: Of the parameters.
        rate_ratio: Its learning rate over the first group's.
        options: What torch's ``sgd`` takes; `Parameters.set_strategy` sets lr and momentum.
    """

    names: list[str]
    rate_ratio: float
    options: dict[str, Any]


def _parameter_groups(
    model: nn.Module,
    trainable: Mapping[str, nn.Parameter],
    optimizer: Mapping[str, Any] | Callable[[nn.Module], list[dict[str, Any]]],
) -> list[_Group]:
    """The parameter groups that ``torch.optim.SGD`` would have."""
    groups = optimizer(model) if callable(optimizer) else [{"params": model.parameters()}]
    options = {} if callable(optimizer) else dict(optimizer)
    if not isinstance(groups, list) or not all(
        isinstance(group, Mapping) and "params" in group for group in groups
    ):
        raise ValueError(
            f"Workload.optimizer(model) returned {groups!r}: "
            "return a list of dicts, each with 'params'"
        )
    rates: list[Any] = [group.get("lr") for group in groups]
    if any(rate is None for rate in rates) != all(rate is None for rate in rates):
        raise ValueError(
            "Workload.optimizer(model): give every parameter group an lr or none; they keep "
            "the ratio to the first group's, which the strategy sets"
        )
    if any(rate is not None and not _is_positive(rate) for rate in rates):
        raise ValueError(
            f"Workload.optimizer(model): lr must be above 0, and a finite number; got {rates}"
        )
    cleaned = []
    for number, group in enumerate(groups):
        extra = {key: value for key, value in group.items() if key not in ("params", "lr")}
        check_optimizer_options(extra, f"Workload.optimizer(model)[{number}]")
        params = group["params"]
        params = [params] if isinstance(params, torch.Tensor) else list(params)
        if not all(isinstance(parameter, torch.Tensor) for parameter in params):
            raise ValueError(
                f"Workload.optimizer(model)[{number}]['params'] holds something else than "
                "parameters; give model.parameters(), not named_parameters()"
            )
        params = [parameter for parameter in params if parameter.requires_grad]
        if params:
            cleaned.append(({"params": params, **extra}, rates[number] or 1.0))
    covered = {id(parameter) for group, _ in cleaned for parameter in group["params"]}
    missing = [name for name, parameter in trainable.items() if id(parameter) not in covered]
    if missing:
        raise ValueError(
            f"Workload.optimizer(model) leaves out {', '.join(missing)}; give each trainable "
            "parameter to one group, or set requires_grad=False"
        )
    if len(covered) > len(trainable):
        raise ValueError(
            "Workload.optimizer(model) names parameters of another model; "
            "give those of the model it is called with"
        )
    # torch checks the options; momentum is a placeholder, since nesterov insists on one
    checked = torch.optim.SGD(
        [group for group, _ in cleaned], lr=1.0, momentum=0.5, fused=True, **options
    )
    names = {id(parameter): name for name, parameter in trainable.items()}
    return [
        _Group(
            names=[names[id(parameter)] for parameter in group["params"]],
            rate_ratio=rate / cleaned[0][1],
            options={name: group[name] for name in _SGD_OPTIONS} | {"lr": 1.0, "momentum": 0.0},
        )
        for group, (_, rate) in zip(checked.param_groups, cleaned, strict=True)
    ]


def _is_positive(rate: Any) -> bool:
    try:
        return 0 < float(rate) < math.inf
    except (TypeError, ValueError):
        return False


def _check_tensors(
    file: str,
    given: Mapping[str, torch.Tensor],
    own: Mapping[str, torch.Tensor],
    *,
    complete: bool,
) -> None:
    unknown = sorted(set(given) - set(own))
    missing = sorted(set(own) - set(given)) if complete else []
    wrong = [
        name
        for name, tensor in given.items()
        if name in own and (tensor.shape, tensor.dtype) != (own[name].shape, own[name].dtype)
    ]
    if unknown or missing or wrong:
        raise ValueError(
            f"{file} is of another model: unknown {unknown[:5]}, missing {missing[:5]}, "
            f"other shape or type {wrong[:5]}"
        )
