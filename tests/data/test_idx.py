import gzip
import hashlib
import struct

import numpy as np
import pytest

from omnivore_ray.data.idx import read_idx


def encode(values, type_byte=0x08):
    header = bytes([0, 0, type_byte, values.ndim]) + struct.pack(f">{values.ndim}I", *values.shape)
    return header + values.astype(values.dtype.newbyteorder(">")).tobytes()


@pytest.mark.parametrize(
    ("type_byte", "dtype"), [(0x08, "u1"), (0x09, "i1"), (0x0B, "i2"), (0x0C, "i4"), (0x0E, "f8")]
)
def test_reads_what_was_written(tmp_path, type_byte, dtype):
    values = np.arange(24).reshape(2, 3, 4).astype(dtype)
    plain, zipped = tmp_path / "a", tmp_path / "a.gz"
    plain.write_bytes(encode(values, type_byte))
    zipped.write_bytes(gzip.compress(encode(values, type_byte)))
    for path in (plain, zipped):
        assert np.array_equal(read_idx(path), values)


def test_the_checksum_is_that_of_the_unzipped_bytes(tmp_path):
    data = encode(np.arange(3, dtype=np.uint8))
    path = tmp_path / "a.gz"
    path.write_bytes(gzip.compress(data))
    assert len(read_idx(path, hashlib.md5(data).hexdigest())) == 3
    with pytest.raises(ValueError, match="md5"):
        read_idx(path, hashlib.md5(path.read_bytes()).hexdigest())


GOOD = encode(np.arange(6, dtype=np.uint8).reshape(2, 3))


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "does not begin"),
        (b"\1" + GOOD[1:], "does not begin"),
        (b"\0\0\x07" + GOOD[3:], "does not begin"),
        (GOOD[:9], "inside its header"),
        (GOOD[:-1], "5 bytes of values and its header says 6"),
        (GOOD + b"\0", "7 bytes of values and its header says 6"),
    ],
)
def test_a_damaged_file_is_refused(tmp_path, data, words):
    path = tmp_path / "a"
    path.write_bytes(data)
    with pytest.raises(ValueError, match=words):
        read_idx(path)


def test_a_cut_gzip_file_is_refused(tmp_path):
    path = tmp_path / "a.gz"
    path.write_bytes(gzip.compress(GOOD)[:-9])
    with pytest.raises(ValueError, match="not a whole gzip file"):
        read_idx(path)
