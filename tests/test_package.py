import importlib.metadata
import re
import subprocess
import sys
from pathlib import Path

import pytest
from packaging.requirements import Requirement

import omnivore_ray

ROOT = Path(omnivore_ray.__file__).parent


def test_the_version_is_the_installed_one():
    assert importlib.metadata.version("omnivore-ray") == omnivore_ray.__version__


@pytest.mark.parametrize("name", omnivore_ray.__all__)
def test_every_public_name_resolves(name):
    assert getattr(omnivore_ray, name).__name__.rpartition(".")[2] == name
    assert name in dir(omnivore_ray)


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = omnivore_ray.no_such_name


def test_the_package_says_that_it_is_typed():
    assert (ROOT / "py.typed").is_file()


def test_the_command_is_installed():
    finished = subprocess.run(
        [Path(sys.executable).parent / "omnivore", "--help"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "Usage" in finished.stdout


def test_every_dependency_is_pinned():
    """An unpinned dependency is one whose next release can break a fresh clone."""
    constraints = Path(__file__).parents[1] / "constraints.txt"
    pinned = {
        canonical(line.partition("==")[0])
        for line in constraints.read_text().splitlines()
        if not line.startswith("#")
    }
    needed = set()
    waiting = [(canonical("omnivore-ray"), extra) for extra in ("dev", "cluster")]
    while waiting:
        name, wanted = waiting.pop()
        for line in importlib.metadata.requires(name) or ():
            requirement = Requirement(line)
            if requirement.marker and not requirement.marker.evaluate({"extra": wanted}):
                continue
            for extra in requirement.extras or {""}:
                step = canonical(requirement.name), extra
                if step not in needed and is_installed(step[0]):
                    needed.add(step)
                    waiting.append(step)
    names = {name for name, _ in needed}
    assert "torch" in names
    assert names - pinned - {"omnivore-ray"} == set()


def canonical(name):
    return re.sub(r"[-_.]+", "-", name).lower()


def is_installed(name):
    try:
        importlib.metadata.distribution(name)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True
