"""Cutting a model into backbone and head, without its author's help.

The model is traced by torch.fx. Everything before the first use of a named module is the backbone,
the rest is the head, and the values that cross are the activations. A cut is kept only if it gives
the outputs and gradients of the whole model on one batch.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx, nn

from omnivore_ray.device.trainer import count_samples, split_batch
from omnivore_ray.workload import Workload

_RELATIVE, _ABSOLUTE = 1e-4, 1e-6


@dataclass(frozen=True, kw_only=True, slots=True)
class Split:
    """A model in two parts, which share its parameters and buffers under their own names.

    Attributes:
        name: The first module of the head.
        backbone: ``(*inputs, **named) -> tuple of activations``, each rows x ...
        head: ``(*activations) -> outputs``.
        backbone_names: Parameters and buffers of the backbone, by their names in the whole model,
            with those that the model never uses.
        head_names: Those of the head.
    """

    name: str
    backbone: nn.Module
    head: nn.Module
    backbone_names: tuple[str, ...]
    head_names: tuple[str, ...]


def split_at(
    module: nn.Module, name: str, batch: Any, loss: Callable[[Any, Any], Any], target: str
) -> Split:
    """Cuts before the first use of a module.

    Args:
        module: The model, on the CPU; left as it is.
        name: As in ``named_modules``.
        batch: Rows of the data, to compare cut and whole model on.
        loss: The workload's.
        target: Name of the targets in a dict batch.

    Raises:
        ValueError: There is no such module, or a sentence why the model stays whole.
    """
    if not name or name not in dict(module.named_modules()):
        raise ValueError(f"Workload.head={name!r} is no module of the model; {_choice(module)}")
    _check_loss(loss)
    traced = _trace(module, name)
    if name not in traced.first:
        raise ValueError(
            f"Workload.head={name!r} is never called by the model's forward; {_choice(module)}"
        )
    split = _cut(module, traced, name)
    _compare(module, split, batch, loss, target)
    return split


def candidates(module: nn.Module) -> list[str]:
    """Modules that a head could begin with, in the order of their first use.

    Raises:
        ValueError: The model cannot be traced.
    """
    traced = _trace(module)
    found = []
    for name in traced.first:
        try:
            _cut(module, traced, name)
        except ValueError:
            continue
        found.append(name)
    return found


def split_for(workload: Workload, module: nn.Module, batch: Any) -> tuple[Split | None, str]:
    """The cut that a workload asks for, and the reason in words.

    Raises:
        ValueError: ``Workload.head`` names a module at which the model cannot be cut.
    """
    if workload.head is None:
        return None, "Workload.head=None"
    if workload.head == "auto":
        return None, "the cut is not chosen automatically yet; name the head's first module"
    split = split_at(module, workload.head, batch, workload.loss, workload.target)
    return split, f"Workload.head={workload.head!r}"


@dataclass(frozen=True, kw_only=True, slots=True)
class _Traced:
    """A graph, what its targets name, and the place of each module's first call among its nodes."""

    graph: fx.Graph
    root: nn.Module
    first: dict[str, int]


class _Tracer(fx.Tracer):
    """Looks into the modules around ``name`` only, or as deep as torch's own does."""

    def __init__(self, name: str | None) -> None:
        super().__init__()
        self.proxy_buffer_attributes = True
        self.name = name
        self.first: dict[str, int] = {}

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        if self.name is None:
            return super().is_leaf_module(m, module_qualified_name)
        return not self.name.startswith(f"{module_qualified_name}.")

    def call_module(
        self, m: nn.Module, forward: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        self.first.setdefault(self.path_of_module(m), len(self.graph.nodes))
        return super().call_module(m, forward, args, kwargs)


def _trace(module: nn.Module, name: str | None = None) -> _Traced:
    graphs = []
    for training in (True, False):
        root = copy.deepcopy(module).train(training)
        tracer = _Tracer(name)
        try:
            graphs.append(tracer.trace(root))
        except Exception as error:
            raise ValueError(
                f"the model stays whole, since its forward cannot be traced: {error} "
                "(control flow that depends on values?)"
            ) from error
    if str(graphs[0]) != str(graphs[1]):
        raise ValueError(
            "the model stays whole, since its forward reads self.training; "
            "use modules such as nn.Dropout instead of functions"
        )
    return _Traced(graph=graphs[1], root=root, first=tracer.first)


def _cut(module: nn.Module, traced: _Traced, name: str) -> Split:
    """The two graphs as modules.

    Raises:
        ValueError: A sentence why the model cannot be cut there.
    """
    nodes = list(traced.graph.nodes)
    before, after = nodes[: traced.first[name]], nodes[traced.first[name] :]
    # a parameter is read on the side that uses it
    own = {node for node in before if node.op == "get_attr"}
    inside = set(before) - own
    crossing = [n for n in before if n in inside and any(u not in inside for u in n.users)]
    front, back = fx.Graph(), fx.Graph()
    fronts: dict[fx.Node, fx.Node] = {}
    for node in before:
        if node not in own or not node.users or any(user in inside for user in node.users):
            fronts[node] = front.node_copy(node, fronts.__getitem__)
    front.output(tuple(fronts[node] for node in crossing))
    backs = {node: back.placeholder(f"activation_{i}") for i, node in enumerate(crossing)}
    for node in nodes:
        if node in own and any(user in set(after) for user in node.users):
            backs[node] = back.node_copy(node, backs.__getitem__)
    for node in after:
        backs[node] = back.node_copy(node, backs.__getitem__)
    backbone = _part(module, traced.root, front)
    head = _part(module, traced.root, back)
    names = {
        id(tensor): label for label, tensor in [*module.named_parameters(), *module.named_buffers()]
    }
    in_head = _tensors(head)
    in_backbone = _tensors(backbone)
    shared = {id(t) for t in in_head.values()} & {id(t) for t in in_backbone.values()}
    if shared:
        raise ValueError(
            f"the model cannot be cut at {name!r}: both sides would use "
            f"{', '.join(sorted(names[key] for key in shared))}; cut before or after all its uses"
        )
    for label, tensor in [*in_head.items(), *in_backbone.items()]:
        if names.get(id(tensor)) != label:
            raise ValueError(
                f"the model cannot be cut at {name!r}: the tensor {label!r} goes by several names"
            )
    if not any(p.requires_grad for p in backbone.parameters()):
        raise ValueError(
            f"the head would be the whole model: no trainable parameter is used before {name!r}; "
            "name a later module, or head=None"
        )
    if not any(p.requires_grad for p in head.parameters()):
        raise ValueError(
            f"the head at {name!r} would have no trainable parameter; name an earlier module"
        )
    head_names = tuple(label for label in names.values() if label in in_head)
    return Split(
        name=name,
        backbone=backbone,
        head=head,
        backbone_names=tuple(label for label in names.values() if label not in in_head),
        head_names=head_names,
    )


def _part(module: nn.Module, root: nn.Module, graph: fx.Graph) -> fx.GraphModule:
    """A graph as a module on the tensors of the model that was traced from a copy."""
    attributes = {}
    constants = []
    buffers = {id(buffer) for buffer in module.buffers()}
    for node in graph.nodes:
        if node.op in ("call_module", "get_attr"):
            value = _find(module, node.target)
            if value is None:  # a constant, that the trace found
                value = _find(root, node.target)
            attributes[node.target] = value
            is_plain = isinstance(value, torch.Tensor) and not isinstance(value, nn.Parameter)
            if is_plain and id(value) not in buffers:
                constants.append((node.target, value))
    part = fx.GraphModule(attributes, graph)
    for target, value in constants:  # which fx made buffers
        path, _, leaf = target.rpartition(".")
        owner = part.get_submodule(path)
        owner._buffers.pop(leaf, None)
        owner.__dict__[leaf] = value
    return part


def _find(module: nn.Module, target: str) -> Any:
    value: Any = module
    for piece in target.split("."):
        value = getattr(value, piece, None)
    return value


def _tensors(module: nn.Module) -> dict[str, torch.Tensor]:
    return dict([*module.named_parameters(), *module.named_buffers()])


def _compare(module: nn.Module, split: Split, batch: Any, loss: Any, target: str) -> None:
    """Refuses a cut that computes something else than the whole model.

    Raises:
        ValueError: What differs, or what cannot cross.
    """
    inputs, named, targets = split_batch(batch, target)
    samples = count_samples(batch)

    def cut(*inputs: Any, **named: Any) -> Any:
        activations = split.backbone(*inputs, **named)
        for activation in activations:
            if not isinstance(activation, torch.Tensor):
                raise ValueError(
                    f"the model cannot be cut at {split.name!r}: a value of type "
                    f"{type(activation).__name__} would have to cross; name another module"
                )
            if activation.ndim == 0 or len(activation) != samples:
                raise ValueError(
                    f"the model cannot be cut at {split.name!r}: an activation of shape "
                    f"{tuple(activation.shape)} has not one entry for each of {samples} rows"
                )
        return split.head(*(activation.clone() for activation in activations))

    trainable = {n: p for n, p in module.named_parameters() if p.requires_grad}
    for training in (True, False):
        results = []
        for forward in (module, cut):
            with _undone(module, training):
                outputs = forward(*inputs, **named)
                value = loss(outputs, targets)
                gradients: Any = [None] * len(trainable)
                if training:
                    gradients = torch.autograd.grad(
                        value, list(trainable.values()), allow_unused=True
                    )
                results.append(
                    {
                        "the loss": value.detach(),
                        **{f"the output {i}": t for i, t in enumerate(_flat(outputs))},
                        **{
                            f"the gradient of {n}": g
                            for n, g in zip(trainable, gradients, strict=True)
                        },
                        **{f"the buffer {n}": b.clone() for n, b in module.named_buffers()},
                    }
                )
        for what, expected in results[0].items():
            if not _close(expected, results[1].get(what)):
                raise ValueError(
                    f"the model stays whole: cut at {split.name!r}, {what} differs from that of "
                    f"the whole model in {'training' if training else 'evaluation'}"
                )


@contextmanager
def _undone(module: nn.Module, training: bool) -> Iterator[None]:
    """Seeds alike, and puts modes, buffers and random state back."""
    modes = {part: part.training for part in module.modules()}
    buffers = [
        (part, name, buffer, buffer.detach().clone())
        for part in module.modules()
        for name, buffer in part.named_buffers(recurse=False)
    ]
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        module.train(training)
        try:
            yield
        finally:
            for part, mode in modes.items():
                part.training = mode
            with torch.no_grad():
                for part, name, buffer, value in buffers:
                    setattr(part, name, buffer.copy_(value))  # it may have been assigned anew


def _flat(outputs: Any) -> list[torch.Tensor]:
    leaves = torch.utils._pytree.tree_leaves(outputs)
    return [leaf.detach() for leaf in leaves if isinstance(leaf, torch.Tensor)]


def _close(expected: torch.Tensor | None, value: torch.Tensor | None) -> bool:
    if expected is None or value is None:
        return expected is value
    if expected.shape != value.shape:
        return False
    scale = float(expected.abs().max()) if expected.numel() else 0.0
    return torch.allclose(
        expected, value, rtol=_RELATIVE, atol=_ABSOLUTE * max(scale, 1.0), equal_nan=True
    )


def _check_loss(loss: Callable[[Any, Any], Any]) -> None:
    try:
        inspect.signature(loss).bind(None, None)
    except TypeError:
        raise ValueError(
            "the model stays whole, since Workload.loss takes more than (outputs, targets); "
            "let the model return what the loss needs of the inputs"
        ) from None
    except ValueError:  # no signature to be had
        pass


def _choice(module: nn.Module) -> str:
    try:
        return f"choose from {', '.join(candidates(module))}"
    except ValueError as error:
        return str(error)
