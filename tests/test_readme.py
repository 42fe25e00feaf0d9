"""What the pages tell people to type works: Python blocks run, commands and links are there."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from omnivore_ray import cli

ROOT = Path(__file__).resolve().parent.parent
BIN = Path(sys.executable).parent
PAGES = ("README.md", "docs/guide.md", "docs/design.md", "CONTRIBUTING.md", "CHANGELOG.md")
TAUGHT = ("README.md", "docs/guide.md")
#: A reader's run takes as long as it takes; here it ends after so many seconds.
LONGEST_RUN_S = 40
#: Commands that change the machine, or need a cluster: tests/cluster/test_job_submit.py.
NOT_RUN = ("pip install ", "ray start ", "ray job stop ", "export ")


def blocks(page: str, language: str) -> list[tuple[int, str]]:
    """The fenced blocks of one language: number of the line before the first, and text."""
    text = (ROOT / page).read_text()
    found = re.finditer(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    return [(text[: match.start(1)].count("\n"), match[1]) for match in found]


def commands(page: str) -> list[list[str]]:
    """The words of each command in the page's shell blocks."""
    text = "".join(block for _, block in blocks(page, "sh")).replace("\\\n", " ")
    return [words for line in text.splitlines() if (words := shlex.split(line, comments=True))]


def training_options(page: str) -> list[list[str]]:
    """What the page's training commands pass to `omnivore train`."""
    found = []
    for words in commands(page):
        if "--" in words:  # what a job runs
            words = words[words.index("--") + 1 :]
        if words[:2] == ["omnivore", "train"]:
            found.append(words[2:])
        elif words[:2] == ["python", "jobs/train.py"]:
            found.append(["zoo:lenet", *words[2:]])
    return found


@pytest.mark.slow
@pytest.mark.parametrize("page", TAUGHT)
def test_every_python_block_runs(page, ray_session, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("ray.train.constants.DEFAULT_STORAGE_PATH", str(tmp_path / "ray_results"))
    namespace = {"__name__": "reader"}
    assert blocks(page, "python")
    for lines_before, text in blocks(page, "python"):
        text = re.sub(
            r"time_limit_s=(\d+)", lambda m: f"time_limit_s={min(int(m[1]), LONGEST_RUN_S)}", text
        )
        exec(compile("\n" * lines_before + text, str(ROOT / page), "exec"), namespace)
    assert namespace["result"].metrics["updates"] > 0


@pytest.mark.parametrize("page", TAUGHT)
def test_every_command_is_one_that_exists(page):
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for words in commands(page):
        line = " ".join(words)
        if words[0] == "make":
            assert set(words[1:]) <= targets, line
        elif words[0] == "python":
            assert (ROOT / words[1]).is_file(), line
        elif words[:3] == ["ray", "job", "submit"]:
            assert "--" in words, line
        else:
            assert words[:2] == ["omnivore", "train"] or line.startswith(NOT_RUN), line
    for options in training_options(page):
        cli.train.make_context("train", list(options)).close()  # raises on what it does not know


@pytest.mark.parametrize("page", PAGES)
def test_what_is_named_in_passing_exists(page):
    text = (ROOT / page).read_text()
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert set(re.findall(r"`make ([a-z-]+)`", text)) <= targets
    for path in re.findall(r"`(?:python )?((?:\w+/)+[\w.]*|\w+\.py)`", text):
        if not path.startswith(("checkpoints/", "my_")):  # a run's, and the reader's own
            assert any(ROOT.glob(path)) or any((ROOT / "omnivore_ray").rglob(path)), path


@pytest.mark.parametrize("page", PAGES)
def test_every_link_leads_somewhere(page):
    place = ROOT / page
    for target in re.findall(r"\]\(([^)\s]+)\)", place.read_text()):
        if "://" in target:
            continue
        file, _, anchor = target.partition("#")
        linked = (place.parent / file) if file else place
        assert linked.exists(), target
        if anchor:
            assert anchor in anchors(linked), target


def anchors(page: Path) -> set[str]:
    """The anchors that GitHub gives a page's headings."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


BENCHMARKS = [
    path for path in sorted((ROOT / "benchmarks").glob("*.py")) if "__main__" in path.read_text()
]


@pytest.mark.slow
@pytest.mark.parametrize("script", BENCHMARKS, ids=lambda path: path.name)
def test_every_benchmark_says_what_it_is(script):
    told = subprocess.run([sys.executable, script, "--help"], capture_output=True, text=True)
    assert told.returncode == 0, told.stderr
    assert "--help" in told.stdout


@pytest.mark.slow
def test_the_readmes_commands_train(tmp_path):
    """As typed, but for a limit of a few seconds; the exit code tells whether that was enough."""
    environment = {**os.environ, "RAY_ADDRESS": ""}
    assert training_options("README.md")
    for number, options in enumerate(training_options("README.md")[:2]):
        command = [
            BIN / "omnivore", "train", *options, "--devices=2", "--time-limit=20", "--json",
            f"--storage-path={tmp_path}", f"--name={number}",
        ]  # fmt: skip
        told = subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment)
        assert told.stdout, told.stderr
        line = json.loads(told.stdout.splitlines()[-1])
        assert line["updates"] > 0
        missed = "--until" in options and not line["target_reached"]
        assert told.returncode == (1 if missed else 0)
