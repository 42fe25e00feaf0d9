import json
from dataclasses import replace

import pytest
import torch

from omnivore_ray.simulate.cache import Cache, fingerprint


class Counting:
    def __init__(self):
        self.runs = 0

    def __call__(self):
        self.runs += 1
        return {"seconds": 1.5 * self.runs}


def test_a_configuration_runs_once(tmp_path):
    run, cache = Counting(), Cache(tmp_path / "new")
    assert cache.get({"a": 1, "b": 2}, run) == {"seconds": 1.5}
    assert Cache(tmp_path / "new").get({"b": 2, "a": 1}, run) == {"seconds": 1.5}
    assert run.runs == 1
    assert cache.get({"a": 1, "b": 3}, run) == {"seconds": 3.0}


def test_a_run_that_fails_leaves_nothing(tmp_path):
    def fails():
        raise KeyboardInterrupt

    cache = Cache(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        cache.get({"a": 1}, fails)
    assert cache.get({"a": 1}, Counting()) == {"seconds": 1.5}


@pytest.mark.parametrize("damage", ["", "{", "[1]", '{"configuration": {"a": 2}, "result": {}}'])
def test_a_damaged_file_is_run_again(tmp_path, damage):
    run, cache = Counting(), Cache(tmp_path)
    cache.get({"a": 1}, run)
    (file,) = tmp_path.iterdir()
    file.write_text(damage)
    assert cache.get({"a": 1}, run) == {"seconds": 3.0}
    assert json.loads(file.read_text())["result"] == {"seconds": 3.0}


def test_a_fingerprint_tells_workloads_apart(regression, accuracy):
    base = regression()
    assert fingerprint(base) == fingerprint(regression())
    json.dumps(fingerprint(base))
    others = [
        regression(rows=99),
        replace(base, batch_size=16),
        replace(base, metrics=accuracy),
        replace(base, optimizer={"weight_decay": 1e-4}),
        replace(base, loss=torch.nn.functional.l1_loss),
        replace(base, model=lambda: torch.nn.Linear(6, 2).double()),
        replace(base, data=(base.data.train[0], base.data.train[1])),
        replace(base, data=replace(base.data, train=(2 * base.data.train[0], base.data.train[1]))),
    ]
    texts = {json.dumps(fingerprint(workload)) for workload in (base, *others)}
    assert len(texts) == len(others) + 1
