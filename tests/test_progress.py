from __future__ import annotations

import io
from pathlib import Path
from types import SimpleNamespace

import pandas as pd

from omnivore_ray import Strategy
from omnivore_ray.progress import progress_line, search_time, write_table

METRICS = {
    "loss": 0.5, "updates": 40, "samples": 2560, "seconds": 20.0, "samples_per_s": 128.0,
    "seconds_per_update": 0.5, "staleness_mean": 0.9, "accuracy": 0.8,
}  # fmt: skip


def run(*decisions: tuple[str, int, float]) -> SimpleNamespace:
    return SimpleNamespace(
        decisions=pd.DataFrame(decisions, columns=["kind", "round", "seconds"]),
        metrics=METRICS,
        strategy=Strategy(groups=2, learning_rate=0.1),
        target_reached=True,
        path=Path("runs/one"),
    )


def test_the_search_is_shown_as_cold_start_and_share_of_the_rest():
    result = run(("probe", 0, 4.0), ("train", 0, 12.0), ("probe", 1, 1.6), ("train", 1, 2.4))
    assert search_time(result) == "4.0 s of cold start, then 10% of the time in probes"


def test_the_table_says_what_happened_and_a_fixed_strategy_has_no_search():
    stream = io.StringIO()
    write_table(run(("train", 0, 20.0)), stream)
    shown = stream.getvalue()
    for words in ("target reached", "yes", "groups=2, learning_rate=0.1", "accuracy", "runs/one"):
        assert words in shown
    assert "time in search" not in shown
    write_table(run(("probe", 0, 4.0), ("train", 0, 16.0)), stream)
    assert "time in search" in stream.getvalue()


def test_a_line_names_the_request_its_numbers_and_the_time_left():
    config = {"kind": "probe", "groups": 2, "learning_rate": 0.05, "momentum": -0.3}
    line = progress_line(config, METRICS, ("accuracy",), 12.4)
    for words in (
        "probe g=2 lr=0.05 mu=-0.3",
        "update 40",
        "128 samples/s",
        "loss 0.5000",
        "accuracy 0.8000",
        "staleness 0.90",
        "20 s",
        "12 s left at most",
    ):
        assert words in line
    assert "left" not in progress_line(config, METRICS, (), None)
