import json

import pytest
from click.testing import CliRunner

from omnivore_ray.errors import OmnivoreError
from omnivore_ray.result import Result
from omnivore_ray.simulate.command import simulate_command
from omnivore_ray.simulate.presets import PRESETS

DEVICES = ["--devices", "4", "--samples-per-s", "400"]
FIXED = ["--strategy", "groups=2,learning_rate=0.1,momentum=0.3"]


@pytest.fixture
def invoke(regression, tmp_path):
    shown = []
    workload = regression(rows=96)

    def load(name):
        if name == "zoo:broken":
            raise ValueError("no such workload")
        return workload

    command = simulate_command(load, lambda result, as_json: shown.append((result, as_json)))

    def run(*arguments):
        shown.clear()
        folder = ["--folder", str(tmp_path / "run")]
        result = CliRunner().invoke(command, ["zoo:it", *folder, *arguments])
        return result, shown

    return run


def test_a_run_is_shown_and_its_exit_code_says_if_it_arrived(invoke, tmp_path):
    until = ["--until", "loss<=0.2", "--time-limit", "30"]
    finished, ((result, as_json),) = invoke(*DEVICES, *FIXED, *until, "--json")
    assert finished.exit_code == 0
    assert result.target_reached and as_json
    assert "simulated: 4 virtual devices" in finished.stdout
    assert Result.from_path(tmp_path / "run").strategy.groups == 2


def test_a_missed_target_exits_with_1(invoke):
    finished, shown = invoke(*DEVICES, *FIXED, "--until", "loss<=0.0", "--time-limit", "1")
    assert (finished.exit_code, len(shown)) == (1, 1)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--cluster", "paper-tpu-9"], "unknown; there are"),
        (["--cluster", "1gbit-32", "--devices", "3"], "leave out --devices"),
        (["--devices", "3"], "give --cluster PRESET"),
        (["--devices", "3", "--samples-per-s", "-1"], "samples_per_s=-1.0"),
        ([*DEVICES, "--strategy", "groups=9,learning_rate=1", "--time-limit", "1"], "groups=9"),
        ([*DEVICES, "--table"], "--table needs --until"),
        ([*DEVICES, "--table", "--until", "loss<=1", "--time-limit", "1", "--seeds", "0"], "seeds"),
        (DEVICES, "until= or time_limit_s="),
    ],
)
def test_bad_arguments_exit_with_2(invoke, arguments, words):
    finished, shown = invoke(*arguments)
    assert finished.exit_code == 2
    assert words in finished.stderr
    assert not shown


def test_a_run_that_fails_exits_with_1(invoke):
    finished, shown = invoke(
        *DEVICES, "--strategy", "groups=2,learning_rate=1e6", "--time-limit", "50"
    )
    assert finished.exit_code == 1
    assert "diverged" in finished.stderr
    assert not shown


def test_a_preset_is_timed_with_its_head_server(invoke):
    finished, ((result, _),) = invoke(
        "--cluster", "1gbit-32", *FIXED, "--time-limit", "600", "--timing-only"
    )
    assert finished.exit_code == 0
    assert "head server of 0.45 s" in finished.stdout
    assert result.metrics["seconds_per_update"] == pytest.approx(2.4, rel=0.05)


def test_a_table_ends_with_json(invoke, monkeypatch):
    from omnivore_ray.simulate import table

    small = {"learning_rates": (0.3, 0.1), "momenta": (0.9,)}
    whole = table.make_table
    monkeypatch.setattr(table, "make_table", lambda *a, **o: whole(*a, **o, **small))
    arguments = ["--table", "--until", "loss<=0.2", "--time-limit", "20", "--seeds", "1", "--json"]
    finished, _ = invoke(*DEVICES, *arguments)
    assert finished.exit_code == 0, finished.output
    content = json.loads(finished.stdout.splitlines()[-1])
    assert [row["groups"] for row in content["rows"]] == [1, 2, 4]
    assert content["autos"][0]["seed"] == 0


def test_help_names_every_preset(invoke):
    finished, _ = invoke("--help")
    words = finished.stdout.replace("\n", " ").split()
    assert all(name in [word.strip(",;") for word in words] for name in PRESETS)


def test_the_users_error_is_told(regression):
    def load(name):
        raise OmnivoreError("mine")

    command = simulate_command(load, lambda *_: None)
    finished = CliRunner().invoke(command, ["zoo:it"])
    assert finished.exit_code == 1
    assert "mine" in finished.stderr
