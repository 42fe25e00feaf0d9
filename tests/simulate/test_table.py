import io
import json
import math

import pytest

from omnivore_ray.errors import OmnivoreError
from omnivore_ray.simulate import table as module
from omnivore_ray.simulate.cluster import Network, VirtualCluster
from omnivore_ray.simulate.service_times import ServiceTimes
from omnivore_ray.simulate.table import make_table
from omnivore_ray.simulate.table_text import write_table
from omnivore_ray.strategy import Strategy
from omnivore_ray.workload import Target


def cluster():
    return VirtualCluster.uniform(
        4,
        400.0,
        service_times=ServiceTimes("jittered", cv=0.3),
        network=Network(bytes_per_s=1e6, alpha_s=0.002),
    )


def make(regression, folder, **changes):
    options = {
        "until": Target("loss", at_most=0.1),
        "time_limit_s": 30.0,
        "learning_rates": (0.03, 0.1, 0.01, 0.3),
        "momenta": (0.9, 0.0),
        "seeds": (0, 1),
        **changes,
    }
    return make_table(regression(), cluster(), folder=folder, **options)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("runs")


@pytest.fixture
def table(regression, folder):
    return make(regression, folder)


def test_a_row_is_its_parts(table):
    assert [row.groups for row in table.rows] == [1, 2, 4]
    first = table.rows[0]
    assert (first.hardware_penalty, first.statistical_penalty) == (1.0, 1.0)
    for row in table.rows:
        assert row.hardware_penalty == row.seconds_per_update / first.seconds_per_update
        assert row.statistical_penalty == row.tuned.updates / first.tuned.updates
        time_s = row.seconds_per_update * row.tuned.updates
        assert row.tuned.seconds == pytest.approx(time_s, rel=0.15)
        assert row.tuned.strategy.groups == row.groups
    paces = [row.seconds_per_update for row in table.rows]
    assert paces == sorted(paces, reverse=True)


def test_a_baseline_keeps_its_momentum_and_is_never_better_than_the_best(table):
    for baseline, row in ((table.synchronous, table.rows[0]), (table.asynchronous, table.rows[-1])):
        assert baseline.strategy.momentum == 0.9
        assert baseline.strategy.groups == row.groups
        assert baseline.seconds >= row.tuned.seconds


def test_auto_counts_its_search(table):
    for auto in table.autos:
        assert math.isfinite(auto.seconds)
        assert 0 < auto.search_s < auto.seconds


def test_a_table_is_resumed_from_its_folder(table, regression, folder, monkeypatch):
    def never(*_, **__):
        raise AssertionError("this was run before")

    monkeypatch.setattr(module.VirtualFleet, "run", never)
    monkeypatch.setattr(module, "simulate", never)
    assert make(regression, folder) == table


def test_a_run_that_cannot_win_is_cut_off(table, folder):
    contents = [json.loads(file.read_text()) for file in folder.iterdir()]
    limits_s = {content["configuration"]["time_limit_s"] for content in contents}
    assert max(limits_s) == 30.0
    assert min(limits_s) <= 1.5 * max(row.tuned.seconds for row in table.rows) < 30.0


def test_what_never_arrives_says_so(regression, tmp_path):
    table = make(regression, tmp_path, learning_rates=(1e6,), momenta=(0.9,), time_limit_s=4.0)
    assert table.rows[0].tuned.strategy is None
    assert math.isinf(table.rows[0].tuned.updates)
    assert math.isnan(table.rows[1].statistical_penalty)
    text = io.StringIO()
    write_table(table, "title", text)
    assert "never" in text.getvalue()
    json.loads(json.dumps(table.to_json(), allow_nan=False))


def test_the_text_has_every_row(table):
    text = io.StringIO()
    write_table(table, "perceptron, simulated", text)
    lines = text.getvalue().splitlines()
    assert "perceptron, simulated" in lines[0]
    for words in ("auto, seed 0", "auto, seed 1", "synchronous, .9", "asynchronous, .9"):
        assert any(words in line for line in lines)
    assert any(f"{table.rows[1].seconds_per_update:.4g}" in line for line in lines)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"seeds": ()}, r"seeds=\(\)"),
        ({"momenta": ()}, r"momenta=\(\)"),
        ({"learning_rates": ()}, r"learning_rates=\(\)"),
        ({"until": Target("precision", at_least=1)}, "precision"),
    ],
)
def test_bad_input_is_refused_by_name(regression, tmp_path, changes, words):
    with pytest.raises(ValueError, match=words):
        make(regression, tmp_path, **changes)


def test_auto_that_gives_up_is_a_row_but_the_users_error_is_raised(
    regression, tmp_path, monkeypatch
):
    runs = module._Runs(
        regression(), cluster(), Target("loss", at_most=0.1), 9.0, module.Cache(tmp_path), print
    )

    def gives_up(*_, **__):
        raise OmnivoreError("nothing learns")

    monkeypatch.setattr(module, "simulate", gives_up)
    assert runs.auto(0).strategy is None
    assert math.isinf(runs.auto(0).seconds)

    def breaks(*_, **__):
        raise OmnivoreError("user code") from KeyError("mine")

    monkeypatch.setattr(module, "simulate", breaks)
    with pytest.raises(OmnivoreError, match="user code"):
        runs.auto(1)


def test_the_best_setting_is_found_within_the_grid(table):
    best = table.rows[0].tuned.strategy
    assert best.learning_rate in (0.03, 0.1, 0.01, 0.3)
    assert isinstance(best, Strategy)
