"""The IDX format of the MNIST family of data sets, plain or gzipped.

Two zero bytes, a type byte, the number of dimensions, that many big-endian 4-byte sizes, then the
values, big-endian, last axis fastest.
"""

from __future__ import annotations

import gzip
import hashlib
import math
import struct
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

_DTYPES = {0x08: ">u1", 0x09: ">i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}


def read_idx(path: Path, md5: str | None = None) -> NDArray[Any]:
    """Reads one IDX file.

    Args:
        path: The file; unzipped first if its name ends in ``.gz``.
        md5: Checksum the unzipped bytes must have, in hexadecimal.

    Returns:
        A read-only array of the shape the file gives.

    Raises:
        ValueError: It is not an IDX file, is cut short, or has another checksum.
    """
    data = path.read_bytes()
    if path.suffix == ".gz":
        try:
            data = gzip.decompress(data)
        except (OSError, EOFError) as error:
            raise ValueError(f"{path} is not a whole gzip file ({error}); fetch it again") from None
    if md5 is not None:
        found = hashlib.md5(data, usedforsecurity=False).hexdigest()
        if found != md5:
            raise ValueError(f"{path} has md5 {found}, not {md5}; fetch it again")
    if len(data) < 4 or data[:2] != b"\0\0" or data[2] not in _DTYPES:
        raise ValueError(f"{path} does not begin as an IDX file does")
    num_dimensions = data[3]
    start = 4 + 4 * num_dimensions
    if len(data) < start:
        raise ValueError(f"{path} ends inside its header; fetch it again")
    shape = struct.unpack(f">{num_dimensions}I", data[4:start])
    dtype = np.dtype(_DTYPES[data[2]])
    expected_bytes = math.prod(shape) * dtype.itemsize
    if len(data) - start != expected_bytes:
        raise ValueError(
            f"{path} holds {len(data) - start} bytes of values and its header says "
            f"{expected_bytes}; fetch it again"
        )
    return np.frombuffer(data, dtype, offset=start).reshape(shape)
