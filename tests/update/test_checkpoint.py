"""Checkpoints: exact, plain, atomic, and never anything but an OmnivoreError when damaged."""

from __future__ import annotations

import contextlib
import json
import os
import shutil

import pyarrow as pa
import pyarrow.parquet
import pytest
import safetensors.torch
import torch
from torch import nn

from omnivore_ray.errors import OmnivoreError
from omnivore_ray.update import checkpoint
from omnivore_ray.update.checkpoint import (
    is_checkpoint,
    load_checkpoint,
    prune_checkpoints,
    read_history,
    read_state,
    read_tensors,
    write_checkpoint,
)
from omnivore_ray.update.history import History
from omnivore_ray.update.parameters import Parameters
from omnivore_ray.update.run_state import RunState
from omnivore_ray.update.stopping import SmoothedLoss


class Net(nn.Module):
    """Every kind of tensor a checkpoint must keep: tied, low precision, counters, a frozen one."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.first = nn.Linear(6, 6, bias=False).double()
        self.second = nn.Linear(6, 6, bias=False).double()
        self.second.weight = self.first.weight
        self.norm = nn.BatchNorm1d(6).double()
        self.low = nn.Linear(6, 4).bfloat16()
        self.last = nn.Linear(4, 2).double()
        self.frozen = nn.Parameter(torch.rand(3), requires_grad=False)
        self.register_buffer("scalar", torch.tensor(0.5))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        hidden = self.norm(self.second(torch.tanh(self.first(inputs))))
        return self.last(self.low(hidden.bfloat16()).double())


STATE = RunState(
    version=7,
    samples=200,
    next_batch=9,
    owed=(3, 8),
    smoothed=SmoothedLoss(total=0.1 + 0.2, weight=1.9, count=7, reference=1 / 3),
    metrics={"accuracy": 0.1, "other": float("nan")},
    evaluated_s=12.5,
    evaluation_took_s=0.25,
)


@pytest.fixture
def trained(fleet, regression):
    """A fleet after 12 updates with momentum."""
    running = fleet(regression(Net))
    running.session_run = running.run(12, momentum=0.9)
    return running


@pytest.fixture
def place(trained, tmp_path):
    write_checkpoint(tmp_path / "c", trained.parameters, STATE, trained.session_run.history, {})
    return tmp_path / "c"


def tensors_of(parameters):
    velocity = {f"velocity {name}": value for name, value in parameters.velocity().items()}
    return {n: t.clone() for n, t in {**parameters.state_dict(), **velocity}.items()}


def assert_same_tensors(one, other):
    assert one.keys() == other.keys()
    for name in one:
        assert one[name].dtype == other[name].dtype
        assert torch.equal(one[name], other[name]), name


def test_a_round_trip_is_exact(trained, place):
    fresh = Parameters(Net(), {})
    state, extra = load_checkpoint(place, fresh)
    assert repr(state) == repr(STATE)
    assert extra == {}
    assert_same_tensors(tensors_of(fresh), tensors_of(trained.parameters))
    assert read_history(place).columns == trained.session_run.history.columns


def test_the_model_file_loads_strictly_into_the_users_module_with_plain_torch(trained, place):
    plain = Net()
    plain.load_state_dict(safetensors.torch.load_file(place / "model.safetensors"), strict=True)
    assert_same_tensors(dict(plain.state_dict()), dict(trained.parameters.state_dict()))


def test_a_resumed_run_is_bit_identical_to_one_that_went_on(fleet, regression, tmp_path):
    workload = regression(Net)
    straight = fleet(workload)
    whole = straight.run(30, momentum=0.8)

    def interrupt(session, device, lease_id, now_s):
        if session.snapshot_state().version == 11:
            state = session.snapshot_state()
            assert state.owed == (11,)
            extra = {"used_s": session.used_s(now_s), "seconds": now_s}
            write_checkpoint(tmp_path / "c", first.parameters, state, session.history, extra)
            session.stop("interrupted", now_s)

    first = fleet(workload)
    assert first.run(30, momentum=0.8, on_push=interrupt).ending.status == "interrupted"

    second = fleet(workload)
    second.state, extra = load_checkpoint(tmp_path / "c", second.parameters)
    second.now_s = extra["seconds"]
    rest = second.run(
        30, momentum=0.8, history=read_history(tmp_path / "c"), used_s=extra["used_s"]
    )
    assert_same_tensors(tensors_of(second.parameters), tensors_of(straight.parameters))
    assert second.state.to_json() == straight.state.to_json()
    for column in ("version", "loss", "samples", "version_read"):
        assert rest.history.columns[column] == whole.history.columns[column]
    one, other = (s.outcome(s.state.version * 32.0, None) for s in (rest, whole))
    assert (one.updates, one.samples, one.loss) == (other.updates, other.samples, other.loss)
    seconds = [point[1] for point in one.curve]
    assert seconds == sorted(seconds)
    assert seconds[0] >= 0


@pytest.mark.parametrize("crash_at", range(12))
def test_a_crash_at_any_step_of_a_replacement_leaves_the_old_or_the_new_one(
    trained, place, monkeypatch, crash_at
):
    """Each call that touches the disk may be the last one of the process."""

    class Crash(BaseException):
        pass

    calls = 0

    def counted(function):
        def call(*args, **kwargs):
            nonlocal calls
            calls += 1
            if calls > crash_at:
                raise Crash
            return function(*args, **kwargs)

        return call

    old = tensors_of(trained.parameters)
    trained.run(5, momentum=0.9)
    new = tensors_of(trained.parameters)
    with monkeypatch.context() as patch:
        patch.setattr(checkpoint.os, "replace", counted(os.replace))
        patch.setattr(checkpoint.shutil, "rmtree", counted(shutil.rmtree))
        patch.setattr(checkpoint.Path, "mkdir", counted(checkpoint.Path.mkdir))
        patch.setattr(checkpoint.Path, "write_text", counted(checkpoint.Path.write_text))
        patch.setattr(
            checkpoint.safetensors.torch, "save_file", counted(safetensors.torch.save_file)
        )
        patch.setattr(History, "write", counted(History.write))
        state = RunState(version=17)
        try:
            write_checkpoint(place, trained.parameters, state, History(), {})
            assert calls <= crash_at
        except Crash:
            pass
    assert is_checkpoint(place)
    fresh = Parameters(Net(), {})
    version = load_checkpoint(place, fresh)[0].version
    assert_same_tensors(tensors_of(fresh), {7: old, 17: new}[version])
    assert len(read_history(place)) == {7: 12, 17: 0}[version]
    # and the next one finds its way from there
    write_checkpoint(place, trained.parameters, RunState(version=18), History(), {})
    assert load_checkpoint(place, fresh)[0].version == 18
    assert sorted(path.name for path in place.parent.iterdir()) == ["c"]


def test_a_state_not_worth_going_on_from_is_written_without_tensors(trained, place):
    write_checkpoint(place, None, STATE, trained.session_run.history, {})
    assert not is_checkpoint(place)
    assert len(read_history(place)) == 12


def test_a_folder_that_cannot_be_written_is_an_error_that_names_it(trained, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OmnivoreError, match="file/c cannot be written"):
        write_checkpoint(tmp_path / "file" / "c", trained.parameters, STATE, History(), {})


# -- damage ---------------------------------------------------------------------------------------


def read_all(place):
    load_checkpoint(place, Parameters(Net(), {}))
    read_history(place)


def assert_refused(place):
    with pytest.raises(OmnivoreError) as raised:
        read_all(place)
    assert str(place) in str(raised.value)


FILES = ("model.safetensors", "optimizer.safetensors", "state.json", "history.parquet")


@pytest.mark.parametrize("name", FILES)
def test_a_missing_or_emptied_file_is_refused(place, name):
    (place / name).write_bytes(b"")
    assert_refused(place)
    (place / name).unlink()
    assert_refused(place)
    (place / name).mkdir()
    assert_refused(place)


@pytest.mark.parametrize("name", FILES)
def test_garbage_and_truncation_never_raise_anything_else(place, name):
    whole = (place / name).read_bytes()
    random = torch.Generator().manual_seed(0)

    def number(below):
        return int(torch.randint(below, (), generator=random))

    for attempt in range(60):
        damaged = bytearray(whole)
        if attempt % 2:
            del damaged[number(len(whole)) :]
        else:
            for _ in range(1 + number(4)):  # most of what matters is at the ends
                at = number(min(len(whole), 300)) * (1 if number(2) else -1)
                damaged[at] = number(256)
        (place / name).write_bytes(damaged)
        with contextlib.suppress(OmnivoreError):  # some damage cannot be seen
            read_all(place)


STATES = [
    "[]", "5", "null", '"text"', "{}", "[" * 100_000, "{" * 5, "{\"format\": NaN}",
    '{"format": 1}', '{"format": 2, "state": {}}', '{"format": 1, "state": []}',
    '{"format": 1, "state": {}}',
]  # fmt: skip


@pytest.mark.parametrize("text", STATES, ids=lambda text: text[:20])
def test_a_state_of_another_form_is_refused(place, text):
    (place / "state.json").write_text(text)
    assert_refused(place)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("version", "7"), ("version", None), ("version", -1), ("version", 1.5), ("version", True),
        ("samples", []), ("next_batch", {}), ("owed", 3), ("owed", ["a"]), ("owed", [-1]),
        ("smoothed", None), ("smoothed", {"total": 1}), ("smoothed", {"total": "a"}),
        ("metrics", []), ("metrics", {"accuracy": "high"}), ("evaluated_s", "now"),
        ("evaluation_took_s", None), ("unknown", 1),
    ],
)  # fmt: skip
def test_a_state_of_wrong_types_is_refused(place, field, value):
    content = json.loads((place / "state.json").read_text())
    content["state"][field] = value
    if field == "smoothed" and value == {"total": 1}:
        value["weight"] = "heavy"
    (place / "state.json").write_text(json.dumps(content))
    assert_refused(place)


@pytest.mark.parametrize("field", ["seconds", "used_s", "request"])
def test_what_is_written_beside_the_state_is_checked_too(place, field):
    content = json.loads((place / "state.json").read_text())
    (place / "state.json").write_text(json.dumps({**content, field: "wrong"}))
    assert_refused(place)


def test_a_huge_state_is_not_read(place):
    with (place / "state.json").open("ab") as file:
        file.truncate(1 << 30)
    assert_refused(place)


def test_a_checkpoint_of_another_model_is_refused_and_leaves_the_parameters_alone(place):
    wider = nn.Sequential(nn.Linear(6, 8))
    parameters = Parameters(wider, {})
    before = parameters.block.clone()
    with pytest.raises(OmnivoreError, match=r"does not fit the workload: .*missing \['0.bias'"):
        load_checkpoint(place, parameters)
    assert torch.equal(parameters.block, before)


@pytest.mark.parametrize("change", [lambda t: t.float(), lambda t: t[:3]])
@pytest.mark.parametrize("name", FILES[:2])
def test_a_tensor_of_another_dtype_or_shape_is_refused(place, name, change):
    tensors = read_tensors(place, name)
    tensors["first.weight"] = change(tensors["first.weight"]).contiguous()
    safetensors.torch.save_file(tensors, place / name)
    assert_refused(place)


def test_a_history_of_other_columns_is_refused(place):
    table = pyarrow.parquet.read_table(place / "history.parquet")
    loss = table.schema.get_field_index("loss")
    for other in (
        table.drop_columns(["loss"]),
        table.set_column(loss, "loss", pa.array(["high"] * len(table))),
        table.set_column(loss, "loss", pa.array([None] * len(table), pa.float64())),
    ):
        pyarrow.parquet.write_table(other, place / "history.parquet")
        with pytest.raises(OmnivoreError):
            read_history(place)


# -- pruning --------------------------------------------------------------------------------------


def folders(trained, root, kinds):
    for number, kind in enumerate(kinds):
        extra = {} if kind is None else {"request": {"kind": kind}}
        place = root / f"{number:02d}"
        write_checkpoint(place, trained.parameters, STATE, trained.session_run.history, extra)
        os.utime(place, (number, number))


def kept(root):
    return {path.name for path in root.iterdir() if is_checkpoint(path)}


def test_pruning_keeps_the_last_stretches_every_history_and_what_is_of_no_kind(trained, tmp_path):
    kinds = [None, *["train"] * 5, *["probe"] * 10]
    folders(trained, tmp_path, kinds)
    prune_checkpoints(tmp_path)
    names = [f"{number:02d}" for number in range(len(kinds))]
    assert kept(tmp_path) == {names[0], *names[3:6]}
    assert all(len(read_history(tmp_path / name)) == 12 for name in names)
    assert all(read_state(tmp_path / name)[0].version == 7 for name in names)


def test_pruning_keeps_what_was_resumed_from_lately(trained, tmp_path):
    folders(trained, tmp_path, ["train"] * 5)
    load_checkpoint(tmp_path / "00", Parameters(Net(), {}))
    prune_checkpoints(tmp_path)
    assert kept(tmp_path) == {"00", "03", "04"}


def test_pruning_leaves_a_damaged_folder_alone(trained, tmp_path):
    folders(trained, tmp_path, ["train"] * 5)
    (tmp_path / "00" / "state.json").write_text("{")
    (tmp_path / "a file").write_text("")
    prune_checkpoints(tmp_path)
    assert kept(tmp_path) == {"00", "02", "03", "04"}
