from __future__ import annotations

import math

import pytest

from omnivore_ray import Strategy
from omnivore_ray.strategy import Outcome, Request


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"groups": 0}, "groups=0"),
        ({"groups": 1.5}, "groups=1.5"),
        ({"groups": True}, "groups=True"),
        ({"learning_rate": 0}, "learning_rate=0"),
        ({"learning_rate": math.nan}, "learning_rate=nan"),
        ({"learning_rate": "0.1"}, "learning_rate='0.1'"),
        ({"momentum": 1.0}, "momentum=1.0"),
        ({"momentum": -1.0}, "momentum=-1.0"),
    ],
)
def test_illegal_values_are_named(arguments, named):
    with pytest.raises(ValueError, match=named):
        Strategy(**{"learning_rate": 0.1, **arguments})


def test_the_command_line_form_is_read_back():
    strategy = Strategy(groups=2, learning_rate=0.05, momentum=-0.3)
    assert Strategy.parse(str(strategy)) == strategy
    for text, named in [
        ("groups=2", "learning_rate= is missing"),
        ("lr=1", "'lr=1'"),
        ("learning_rate=x", "'x' is not a number"),
    ]:
        with pytest.raises(ValueError, match=named):
            Strategy.parse(text)


def test_requests_and_outcomes_survive_the_trip_through_a_config():
    request = Request(
        kind="probe", strategy=Strategy(groups=4, learning_rate=0.1), round=3,
        budget_updates=80, resume_from="somewhere", reason="to see",
    )  # fmt: skip
    assert Request.from_config({**request.to_config(), "other": 1}) == request
    least = Request.from_config({"learning_rate": 0.1})
    assert least == Request(kind="train", strategy=Strategy(learning_rate=0.1))
    with pytest.raises(ValueError, match="'learning_rate' is missing"):
        Request.from_config({"groups": 2})
    outcome = Outcome(status="completed", updates=2, seconds=4.0, curve=((1, 2.0, 0.5),))
    assert Outcome.from_json(outcome.to_json()).curve == outcome.curve
    assert outcome.seconds_per_update == 2.0
    assert Outcome(status="diverged").seconds_per_update is None


def test_requests_refuse_budgets_that_cannot_end():
    with pytest.raises(ValueError, match="budget_updates=0"):
        Request(kind="train", strategy=Strategy(learning_rate=0.1), budget_updates=0)
    with pytest.raises(ValueError, match="budget_s=-1"):
        Request(kind="train", strategy=Strategy(learning_rate=0.1), budget_s=-1)
    with pytest.raises(ValueError, match="kind='other'"):
        Request(kind="other", strategy=Strategy(learning_rate=0.1))
