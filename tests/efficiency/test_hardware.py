"""HE(g): the presets, random clusters against their events, and what must hold for any cluster."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from omnivore_ray.efficiency.hardware import HardwareModel, deal, transfer_seconds
from omnivore_ray.update.groups import deal_devices

GROUPS = np.array([1, 2, 4, 8, 16, 32])
TIMES = ("t_compute", "t_link", "t_head", "t_server")
STALLS = (1.0,) * 19 + (8.0,)
PRESETS = {
    "1 Gb/s": (
        HardwareModel(num_devices=32, t_compute=3.5, t_link=0.15, t_head=0.45, cv=0.05),
        [5.37, 2.40, 1.20, 0.60, 0.45, 0.45],
        0.01,
    ),
    "10 Gb/s": (
        HardwareModel(num_devices=32, t_compute=3.5, t_link=0.015, t_head=0.22, cv=0.05),
        [0.82, 0.35, 0.22, 0.22, 0.22, 0.22],
        0.01,
    ),
    "exponential": (
        HardwareModel(num_devices=32, t_compute=3.2, t_link=0.002, t_head=0.02, cv=1.0),
        [0.49, 0.36, 0.29, 0.22, 0.15, 0.10],
        0.05,
    ),
    "stalls": (
        HardwareModel(
            num_devices=32,
            t_compute=3.2 * 1.35,
            t_link=0.002,
            t_head=0.02,
            service_times=STALLS,
        ),
        [0.76, 0.52, 0.35, 0.23, 0.17, 0.14],
        0.05,
    ),
}


def gamma_draws(rng: np.random.Generator, cv: float) -> Callable[[int], Any]:
    return lambda k: rng.gamma(1 / cv**2, cv**2, k)


def random_model(rng: np.random.Generator, **changes: Any) -> HardwareModel:
    n = int(rng.integers(1, 17))
    values: dict[str, Any] = {
        "num_devices": n,
        "t_compute": 10 ** rng.uniform(-2, 1),
        "t_link": 10 ** rng.uniform(-4, 0),
        "t_head": 10 ** rng.uniform(-3, 0),
        "t_server": 10 ** rng.uniform(-4, -1),
        "cv": float(rng.choice([0, 0.05, 0.5, 1])),
        "sends_when_ready": bool(rng.random() < 0.5),
        "speeds": tuple(rng.uniform(0.2, 3, n).tolist()) if rng.random() < 0.5 else (),
    }
    return HardwareModel(**(values | changes))


@pytest.mark.parametrize("name", PRESETS)
def test_presets_of_the_paper_notes(name: str) -> None:
    model, expected, tolerance = PRESETS[name]
    rounding = 0.005
    error = np.abs(model.seconds_per_update(GROUPS) - expected)
    assert np.all(error <= tolerance * np.array(expected) + rounding)


@pytest.mark.parametrize("name", PRESETS)
def test_presets_by_our_own_events(name: str, events: Callable[..., float]) -> None:
    model, _, tolerance = PRESETS[name]
    rng = np.random.default_rng(5)
    draws = gamma_draws(rng, model.cv or 1)
    if model.service_times:
        draws = lambda k: rng.choice(STALLS, k) / np.mean(STALLS)  # noqa: E731
    for g in GROUPS.tolist():
        seconds = events(
            sizes=[32 // g] * g,
            compute_s=[model.t_compute * g / 32] * g,
            draws=draws,
            link_s=model.t_link,
            head_s=model.t_head,
            num_cycles=max(60, 2400 // g),
        )
        assert model.seconds_per_update(g) == pytest.approx(seconds, rel=tolerance)


def test_random_clusters_follow_their_events(events: Callable[..., float]) -> None:
    """Errors of the model, and of the bound without waiting that it refines."""
    rng = np.random.default_rng(11)
    errors, bound_errors = [], []
    for _ in range(60):
        cv, g = float(rng.choice([0.02, 0.1, 0.4, 1.0])), int(rng.choice([2, 3, 4, 8, 16]))
        model = HardwareModel(
            num_devices=16,
            t_compute=1.0,
            t_link=10 ** rng.uniform(-3, -0.8),
            t_head=10 ** rng.uniform(-2, -0.6),
            t_server=10 ** rng.uniform(-3, -0.8),
            cv=cv,
        )
        sizes, speeds = deal((1.0,) * 16, g)
        seconds = events(
            sizes=sizes.tolist(),
            compute_s=(1 / speeds).tolist(),
            draws=gamma_draws(rng, cv),
            link_s=model.t_link,
            head_s=model.t_head,
            server_s=model.t_server,
            num_cycles=1200 // g,
        )
        bound = max(model._terms(g, model._cycle(g)).values())
        errors.append(abs(float(model.seconds_per_update(g)) / seconds - 1))
        bound_errors.append(abs(bound / seconds - 1))
    assert np.median(errors) < 0.01
    assert np.quantile(errors, 0.9) < 0.035
    assert max(errors) < 0.1
    assert np.quantile(errors, 0.9) < 0.6 * np.quantile(bound_errors, 0.9)


def test_unequal_devices_follow_their_events(events: Callable[..., float]) -> None:
    rng = np.random.default_rng(3)
    for g in (1, 2, 3, 5, 8):
        raw = tuple(rng.uniform(0.3, 3, 8).tolist())
        model = HardwareModel(
            num_devices=8, t_compute=1.0, t_link=0.004, t_head=0.01, cv=0.1, speeds=raw
        )
        sizes, speeds = deal(raw, g)
        seconds = events(
            sizes=sizes.tolist(),
            compute_s=(1 / speeds).tolist(),
            draws=gamma_draws(rng, 0.1),
            link_s=0.004,
            head_s=0.01,
            num_cycles=1500 // g,
        )
        assert model.seconds_per_update(g) == pytest.approx(seconds, rel=0.03)


def test_members_that_send_when_ready_follow_their_events(events: Callable[..., float]) -> None:
    rng = np.random.default_rng(4)
    errors, barrier_errors = [], []
    for _ in range(40):
        cv, g = float(rng.choice([0.05, 0.1, 0.3, 1.0])), int(rng.choice([1, 2, 4, 8]))
        model = HardwareModel(
            num_devices=8,
            t_compute=1.0,
            t_link=10 ** rng.uniform(-3, -0.9),
            t_head=10 ** rng.uniform(-2, -0.6),
            cv=cv,
            sends_when_ready=True,
        )
        seconds = events(
            sizes=[8 // g] * g,
            compute_s=[g / 8] * g,
            draws=gamma_draws(rng, cv),
            link_s=model.t_link,
            head_s=model.t_head,
            num_cycles=1500 // g,
            barrier=False,
        )
        barrier = replace(model, sends_when_ready=False)
        errors.append(abs(float(model.seconds_per_update(g)) / seconds - 1))
        barrier_errors.append(abs(float(barrier.seconds_per_update(g)) / seconds - 1))
    assert np.median(errors) < 0.015
    assert np.quantile(errors, 0.9) < 0.05
    assert np.quantile(errors, 0.9) < 0.5 * np.quantile(barrier_errors, 0.9)


def test_what_is_hidden_behind_transfers_is_not_waited_for_again(
    events: Callable[..., float],
) -> None:
    rng = np.random.default_rng(9)
    model = HardwareModel(
        num_devices=8, t_compute=1.0, t_link=0.05, t_head=0.1, cv=1.0, sends_when_ready=True
    )
    seconds = events(
        sizes=[4, 4],
        compute_s=[0.25, 0.25],
        draws=gamma_draws(rng, 1.0),
        link_s=0.05,
        head_s=0.1,
        num_cycles=2000,
        barrier=False,
    )
    assert model.seconds_per_update(2) == pytest.approx(seconds, rel=0.06)


def test_invariants_on_random_clusters() -> None:
    rng = np.random.default_rng(0)
    for _ in range(100):
        model = random_model(rng)
        groups = np.arange(1, model.num_devices + 1)
        seconds = model.seconds_per_update(groups)
        assert np.all(np.isfinite(seconds)) and np.all(seconds > 0)
        assert np.all(seconds >= max(model.t_head, model.t_server, model.t_link) * (1 - 1e-12))
        for name in TIMES:
            slower = replace(model, **{name: 1.5 * getattr(model, name)})
            assert np.all(slower.seconds_per_update(groups) >= seconds * (1 - 0.02))
        doubled = replace(model, **{name: 2 * getattr(model, name) for name in TIMES})
        np.testing.assert_allclose(doubled.seconds_per_update(groups), 2 * seconds)
        saturating = model.saturating_groups(tolerance=0.05)
        assert model.seconds_per_update(saturating) <= 1.05 * seconds.min()
        assert np.all(seconds[: saturating - 1] > 1.05 * seconds.min())


def test_more_equal_groups_are_never_slower() -> None:
    rng = np.random.default_rng(8)
    for _ in range(50):
        model = random_model(rng, num_devices=32, speeds=())
        seconds = model.seconds_per_update(GROUPS)
        assert np.all(seconds[1:] <= seconds[:-1] * (1 + 1e-9))


def test_equal_groups_without_jitter_are_the_published_terms_with_a_shared_link() -> None:
    rng = np.random.default_rng(1)
    for _ in range(50):
        model = random_model(rng, num_devices=16, cv=0.0, speeds=())
        for g in (1, 2, 4, 8, 16):
            k = 16 / g
            services = k * model.t_link + model.t_head + model.t_server
            expected = max(
                model.t_head,
                model.t_server,
                k * model.t_link,
                (model.t_compute / k + services) / g,
            )
            assert model.seconds_per_update(g) == pytest.approx(expected)


def test_published_form_agrees_without_a_link_and_is_optimistic_with_one() -> None:
    free = HardwareModel(num_devices=32, t_compute=3.5, t_head=0.1)
    np.testing.assert_allclose(
        free.published_seconds_per_update(GROUPS), free.seconds_per_update(GROUPS)
    )
    slow = replace(free, t_link=0.15)
    ratio = slow.seconds_per_update(GROUPS) / slow.published_seconds_per_update(GROUPS)
    assert np.all(ratio >= 1) and ratio.max() > 3


def test_limit_names_what_saturates() -> None:
    model = HardwareModel(num_devices=32, t_compute=3.5, t_link=0.15, t_head=0.45)
    assert [model.limit(g) for g in (1, 2, 8, 16, 32)] == [
        "the devices",
        "the network",
        "the network",
        "the head server",
        "the head server",
    ]
    assert replace(model, t_server=0.5).limit(32) == "the parameter server"
    assert replace(model, t_link=0, t_head=0).limit(32) == "the devices"


def test_saturating_groups_is_where_more_groups_stop_helping() -> None:
    devices_only = HardwareModel(num_devices=12, t_compute=1.0, cv=0.3)
    assert devices_only.saturating_groups() == 12
    assert replace(devices_only, cv=0.0).saturating_groups() == 1
    assert replace(devices_only, t_head=100.0).saturating_groups() == 1
    assert PRESETS["10 Gb/s"][0].saturating_groups() == 4


def test_jitter_costs_and_speed_pays() -> None:
    model = HardwareModel(num_devices=8, t_compute=1.0, t_link=0.01, t_head=0.05)
    groups = np.arange(1, 9)
    assert np.all(
        replace(model, cv=0.5).seconds_per_update(groups) >= model.seconds_per_update(groups)
    )
    fast = replace(model, speeds=(2.0,) * 8)
    np.testing.assert_allclose(
        fast.seconds_per_update(groups), replace(model, t_compute=0.5).seconds_per_update(groups)
    )


def test_dealing_is_the_clusters_own() -> None:
    rng = np.random.default_rng(2)
    for _ in range(50):
        speeds = rng.choice([0.5, 1.0, 1.7], int(rng.integers(1, 20))).tolist()
        g = int(rng.integers(1, len(speeds) + 1))
        sizes, totals = deal(tuple(speeds), g)
        groups = deal_devices(speeds, g)
        expected = sorted((len(each), sum(speeds[d] for d in each)) for each in groups)
        ours = sorted(zip(sizes.tolist(), totals.tolist(), strict=True))
        np.testing.assert_allclose(ours, expected)


def test_shapes_follow_the_groups() -> None:
    model = HardwareModel(num_devices=4, t_compute=1.0)
    assert model.seconds_per_update(2).shape == ()
    assert model.seconds_per_update([[1, 2], [3, 4]]).shape == (2, 2)
    np.testing.assert_allclose(transfer_seconds([0, 100], alpha=0.5, beta=0.01), [0.5, 1.5])


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"num_devices": 0}, "num_devices=0"),
        ({"t_link": -1.0}, "t_link=-1"),
        ({"t_head": float("nan")}, "t_head=nan"),
        ({"t_compute": 0.0}, "t_compute=0"),
        ({"speeds": (1.0,)}, "speeds="),
        ({"speeds": (1.0, 0.0)}, "speeds="),
        ({"service_times": (1.0, -1.0)}, "service_times="),
    ],
)
def test_bad_values_are_named(change: dict[str, Any], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        HardwareModel(**({"num_devices": 2, "t_compute": 1.0} | change))


@pytest.mark.parametrize("g", [0, 3, 1.5, [1, -1]])
def test_groups_outside_one_to_n_are_refused(g: Any) -> None:
    with pytest.raises(ValueError, match="whole numbers from 1 to 2"):
        HardwareModel(num_devices=2, t_compute=1.0).seconds_per_update(g)
