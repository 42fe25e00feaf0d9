"""The room stands on numpy alone, so that every other room may use it."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import omnivore_ray.efficiency


def test_only_numpy_and_the_standard_library_are_imported() -> None:
    files = sorted(Path(omnivore_ray.efficiency.__path__[0]).glob("*.py"))
    assert len(files) >= 6
    for file in files:
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom):
                names = [node.module or ""]
            for name in names:
                assert name.split(".")[0] in {"numpy", *sys.stdlib_module_names} or name.startswith(
                    "omnivore_ray.efficiency"
                ), f"{file.name} imports {name}"
