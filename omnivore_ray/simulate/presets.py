"""Clusters to plan with: the paper's, and four of 32 devices with one trait each.

All train CaffeNet with batches of 256 images of 3 x 227 x 227. Per image its five convolutions
(the backbone) take 666 million multiply-adds and its three fully connected layers (the head) 58.6
million; forward and backward are three passes, and a multiply-add is 2 operations:

    backbone  256 x 666e6 x 6  = 1.02e12 operations a batch, 2.33e6 weights = 9.34e6 bytes
    head      256 x 58.6e6 x 6 = 0.090e12 operations a batch

A machine reaches 40 % of its rated operations: 3.5 s a batch on a 16-core machine, where PAPER.md
section 1 has 3.8 s. A copy of the backbone, down and up, takes 2 x 9.34e6 bytes over the link.
One machine is the head server, the rest are devices; the backbone server is beside one of them.

paper-cpu-9, paper-cpu-33
    c4.4xlarge, 8 cores x 2.9e9 cycles x 32 operations = 0.742e12 rated, 0.297e12 reached: backbone
    1.02e12 / 0.297e12 = 3.45 s, head 0.30 s. 1 Gb/s = 125e6 bytes/s: 0.149 s a copy. 8 and 32
    devices.
paper-gpu-9
    g2.8xlarge, 4 GPUs x 1536 cores x 0.8e9 cycles x 2 operations = 9.83e12 rated, 3.93e12 reached:
    backbone 0.26 s, head 0.023 s. 10 Gb/s = 1.25e9 bytes/s: 0.0149 s a copy. 8 devices.
1gbit-32, 10gbit-32, exponential-32, stalls-32
    PAPER.md section 3: (3.5, .15, .45), (3.5, .015, .22), (3.2, .002, .02) and again
    (3.2, .002, .02) seconds of backbone, copy and head. The first two vary by 5 %; the third's
    step times are exponential; of the fourth's steps 5 % take 8 times the ordinary 3.2 s, so that
    their mean is 3.2 x 1.35 s.

Which machines the paper used is recalled, not checked; their ratings are of data sheets.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from omnivore_ray.simulate.cluster import Head, Network, VirtualCluster, VirtualDevice
from omnivore_ray.simulate.service_times import ServiceTimes

BATCH_SIZE = 256
BACKBONE_OPERATIONS = BATCH_SIZE * 665.8e6 * 6
HEAD_OPERATIONS = BATCH_SIZE * 58.6e6 * 6
BACKBONE_BYTES = 9.34e6
REACHED = 0.4

_CPU_OPERATIONS_PER_S = REACHED * 8 * 2.9e9 * 32
_GPU_OPERATIONS_PER_S = REACHED * 4 * 1536 * 0.8e9 * 2
_STEADY = ServiceTimes("jittered", cv=0.05)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Preset:
    """Seconds of one batch on one device and on the head server, and of one copy down and up."""

    num_devices: int
    compute_s: float
    copy_s: float
    head_s: float
    service_times: ServiceTimes = field(default=_STEADY)


def _machines(num_devices: int, operations_per_s: float, bytes_per_s: float) -> _Preset:
    return _Preset(
        num_devices=num_devices,
        compute_s=BACKBONE_OPERATIONS / operations_per_s,
        copy_s=2 * BACKBONE_BYTES / bytes_per_s,
        head_s=HEAD_OPERATIONS / operations_per_s,
    )


_PRESETS = {
    "paper-gpu-9": _machines(8, _GPU_OPERATIONS_PER_S, 1.25e9),
    "paper-cpu-9": _machines(8, _CPU_OPERATIONS_PER_S, 125e6),
    "paper-cpu-33": _machines(32, _CPU_OPERATIONS_PER_S, 125e6),
    "1gbit-32": _Preset(num_devices=32, compute_s=3.5, copy_s=0.15, head_s=0.45),
    "10gbit-32": _Preset(num_devices=32, compute_s=3.5, copy_s=0.015, head_s=0.22),
    "exponential-32": _Preset(
        num_devices=32,
        compute_s=3.2,
        copy_s=0.002,
        head_s=0.02,
        service_times=ServiceTimes("exponential"),
    ),
    "stalls-32": _Preset(
        num_devices=32,
        compute_s=3.2 * 1.35,
        copy_s=0.002,
        head_s=0.02,
        service_times=ServiceTimes("stalls", stall_share=0.05, stall_factor=8.0),
    ),
}

#: Names that `preset` takes.
PRESETS = tuple(_PRESETS)


def preset(name: str, *, batch_size: int, head_served: bool = True) -> VirtualCluster:
    """A cluster by name; the module's docstring has the arithmetic.

    The clock is CaffeNet's whatever is trained: a batch of the workload takes as long as one of
    CaffeNet, and so does a copy of its parameters.

    Args:
        name: One of `PRESETS`.
        batch_size: The workload's.
        head_served: Whether there is a head server. Without one the devices compute the head too
            (its seconds, on one machine, are added to those of the backbone) and all is stale;
            its weights are taken to travel free, which flatters such a cluster.

    Raises:
        ValueError: Unknown name.
    """
    if name not in _PRESETS:
        raise ValueError(f"cluster={name!r}: unknown; there are {', '.join(PRESETS)}")
    chosen = _PRESETS[name]
    compute_s = chosen.compute_s + (0.0 if head_served else chosen.head_s)
    device = VirtualDevice(samples_per_s=batch_size / compute_s, service_times=chosen.service_times)
    return VirtualCluster(
        devices=[device] * chosen.num_devices,
        network=Network(bytes_per_s=2 * BACKBONE_BYTES / chosen.copy_s, copy_bytes=BACKBONE_BYTES),
        head=Head(batch_s=chosen.head_s) if head_served else None,
    )
