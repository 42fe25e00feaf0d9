"""The arrows of the house: which room may import which, and what from outside."""

import ast
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

import omnivore_ray

PACKAGE = "omnivore_ray"
ROOT = Path(omnivore_ray.__file__).parent
WORDS = frozenset({"strategy", "workload", "errors"})
TOP = frozenset({"trainer", "result", "cli"})


@dataclass(frozen=True, kw_only=True)
class Room:
    """What a room may import: rooms by name, and modules from outside by their first name.

    ``outside`` lists all third-party modules that are allowed; None allows any. ``never`` are
    modules of any origin.
    """

    rooms: frozenset
    outside: frozenset | None = None
    never: frozenset = frozenset()


NO_RAY = frozenset({"ray"})
ENGINE = WORDS | {"efficiency", "search", "update", "device", "data"}
ROOMS = {
    "errors": Room(rooms=WORDS, never=NO_RAY),
    "strategy": Room(rooms=WORDS, never=NO_RAY),
    "workload": Room(rooms=WORDS, never=NO_RAY),
    "efficiency": Room(rooms=frozenset(), outside=frozenset({"numpy"})),
    "search": Room(rooms=frozenset({"efficiency", "strategy", "errors"}), never=NO_RAY),
    "search.searcher": Room(rooms=frozenset({"efficiency", "strategy", "errors"})),
    "update": Room(
        rooms=WORDS,
        outside=frozenset({"numpy", "torch", "safetensors", "pyarrow"}),
        never=frozenset({"time", "threading", "asyncio", "multiprocessing"}),
    ),
    "data": Room(rooms=WORDS, never=NO_RAY),
    "device": Room(rooms=WORDS | {"data"}, never=NO_RAY),
    "zoo": Room(rooms=frozenset({"data", "workload"}), never=NO_RAY),
    "cluster": Room(rooms=ENGINE),
    "simulate": Room(rooms=ENGINE | {"result"}, never=NO_RAY),
}


def imports(source, module, is_package=False):
    """Absolute names of all that the source imports, anywhere in it."""
    package = module.split(".") if is_package else module.split(".")[:-1]
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            whole = ".".join([*base, *([node.module] if node.module else [])])
            if whole == PACKAGE:
                yield from (f"{PACKAGE}.{alias.name}" for alias in node.names)
            else:
                yield whole
        elif isinstance(node, ast.Call) and getattr(
            node.func, "attr", getattr(node.func, "id", "")
        ) in ("import_module", "__import__"):
            yield from (
                argument.value
                for argument in node.args[:1]
                if isinstance(argument, ast.Constant) and isinstance(argument.value, str)
            )


def violations(source, module, is_package=False):
    """The imports that no arrow allows, in words; empty for modules on top of the house."""
    inside = module.removeprefix(PACKAGE).lstrip(".")
    name = inside.split(".")[0]
    room = ROOMS.get(inside) or ROOMS.get(name)
    for imported in imports(source, module, is_package):
        first, _, rest = imported.partition(".")
        if first == PACKAGE:
            target = omnivore_ray._HOMES.get(rest, omnivore_ray._ROOMS.get(rest, imported))
            other = target.removeprefix(PACKAGE).lstrip(".").split(".")[0]
            if room and other and other != name and other not in room.rooms:
                yield f"{module} imports the room {other}"
        elif room and first in room.never:
            yield f"{module} imports {first}"
        elif (
            room
            and room.outside is not None
            and first not in room.outside
            and first not in sys.stdlib_module_names
        ):
            yield f"{module} imports {first}, which is neither standard nor allowed"


def modules():
    for path in sorted(ROOT.rglob("*.py")):
        parts = path.relative_to(ROOT.parent).with_suffix("").parts
        is_package = parts[-1] == "__init__"
        yield ".".join(parts[:-1] if is_package else parts), path, is_package


def test_every_import_follows_an_arrow():
    found = [
        violation
        for module, path, is_package in modules()
        for violation in violations(path.read_text(), module, is_package)
    ]
    assert not found, "\n".join(found)


def test_every_room_has_a_rule():
    rooms = {path.parent.name for path in ROOT.glob("*/__init__.py")}
    assert rooms <= ROOMS.keys()
    assert {"update", "data", "cluster"} <= rooms


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("efficiency.hardware", "import torch"),
        ("efficiency.hardware", "from omnivore_ray.strategy import Strategy"),
        ("efficiency.hardware", "from ..strategy import Strategy"),
        ("efficiency.hardware", "from .. import strategy"),
        ("efficiency.hardware", "from omnivore_ray import Strategy"),
        ("search.algorithm", "import ray.tune"),
        ("search.algorithm", "def late():\n    from ray import tune"),
        ("search.algorithm", "import omnivore_ray.workload"),
        ("search.searcher", "from omnivore_ray.cluster.devices import Device"),
        ("update.ledger", "import time"),
        ("update.ledger", "from threading import Lock"),
        ("update.ledger", "import pandas as pd"),
        ("update.session", "from omnivore_ray.data.sampler import Sampler"),
        (
            "device.step",
            "if 1:\n    try:\n        import ray\n    except ImportError:\n        pass",
        ),
        ("device.step", "from omnivore_ray.cluster.exchange import pack"),
        ("data.sources", "import importlib\nimportlib.import_module('ray.data')"),
        ("data.sources", "from omnivore_ray import zoo"),
        ("zoo.lenet", "from omnivore_ray.device.step import TorchTrainer"),
        ("cluster.fleet", "from omnivore_ray.simulate import VirtualCluster"),
        ("cluster.fleet", "from omnivore_ray import OmnivoreTrainer"),
        ("cluster.fleet", "from omnivore_ray.result import Result"),
        ("simulate.clock", "from omnivore_ray.cluster.fleet import Fleet"),
        ("simulate.clock", "import ray"),
        ("strategy", "from omnivore_ray.search.grids import grid"),
        ("workload", "from omnivore_ray import datasets"),
    ],
)
def test_a_planted_import_against_the_arrows_is_found(module, source):
    assert len(list(violations(source, f"{PACKAGE}.{module}"))) == 1


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("efficiency.hardware", "import math\nimport numpy as np\nfrom .statistical import fit"),
        ("search.searcher", "from ray import tune\nfrom omnivore_ray.search.contract import X"),
        ("update.ledger", "import torch\nfrom safetensors.torch import save_file"),
        ("device.step", "import torch\nfrom omnivore_ray.data.sources import Source"),
        ("cluster.fleet", "import ray\nfrom omnivore_ray import Device, Strategy"),
        ("simulate.clock", "from omnivore_ray.result import Result"),
        ("trainer", "import ray\nfrom omnivore_ray.cluster.fleet import Fleet"),
    ],
)
def test_imports_along_the_arrows_pass(module, source):
    assert not list(violations(source, f"{PACKAGE}.{module}"))


def test_a_relative_import_in_a_package_is_resolved_from_the_package():
    assert list(imports("from . import grids", f"{PACKAGE}.search", is_package=True)) == [
        f"{PACKAGE}.search"
    ]


def imported_by(statement):
    """First names of all modules that a fresh interpreter holds after the statement."""
    finished = subprocess.run(
        [sys.executable, "-c", f"import sys\n{statement}\nprint(*sys.modules)"],
        capture_output=True,
        text=True,
        check=True,
    )
    return {name.partition(".")[0] for name in finished.stdout.split()}


@pytest.mark.parametrize(
    ("statement", "absent"),
    [
        ("import omnivore_ray", {"torch", "ray", "numpy"}),
        ("from omnivore_ray import Strategy, Target, Workload", {"torch", "ray", "numpy"}),
        ("import omnivore_ray.efficiency.hardware", {"torch", "ray", "pandas"}),
        ("import omnivore_ray.search.contract", {"torch", "ray"}),
        ("import omnivore_ray.device.step, omnivore_ray.data.datasets", {"ray"}),
        ("import omnivore_ray.update.session", {"ray"}),
    ],
)
def test_importing_a_room_imports_that_room_only(statement, absent):
    assert not absent & imported_by(statement)
