"""What travels arrives as it was sent, small or large."""

from __future__ import annotations

import numpy as np
import pytest

from omnivore_ray.cluster.exchange import (
    Push,
    decode_answer,
    decode_push,
    encode_answer,
    encode_push,
)
from omnivore_ray.update.ledger import Answer, Lease

LEASE = Lease(2**40, "train", 3, 1, 2**35, 5, 21, 64, 12345)


@pytest.mark.parametrize("finite", [True, False])
@pytest.mark.parametrize(("present", "block"), [(b"\1\0\1", bytes(range(256))), (b"", b"")])
def test_a_small_push_travels_as_bytes_and_comes_back(finite, present, block):
    push = Push(7, 2**33, 2**40, block, present, 0.1, finite, 1e-9)
    sent = encode_push(push)
    assert isinstance(sent, bytes)
    assert decode_push(sent) == push


def test_large_blocks_and_validations_travel_as_they_are():
    large = Push(0, 1, 2, np.zeros(4, np.uint8))
    means = Push(0, 1, 2, metrics={"accuracy": 0.5})
    assert encode_push(large) is large
    assert encode_push(means) is means
    assert decode_push(means) is means


@pytest.mark.parametrize("kind", ["train", "evaluate"])
def test_a_lease_with_a_small_block_travels_as_bytes_and_comes_back(kind):
    lease = LEASE._replace(kind=kind)
    sent = encode_answer((lease, b"block"))
    assert isinstance(sent, bytes)
    assert decode_answer(sent) == (lease, b"block")


def test_other_answers_travel_as_they_are():
    assert decode_answer(encode_answer(Answer.STOP)) is Answer.STOP
    answer = (LEASE, np.zeros(4, np.uint8))
    assert encode_answer(answer) is answer
    assert decode_answer(answer) is answer
