"""Device: one GPU, or one allotment of CPU cores, that trains as a black box."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from omnivore_ray.device.emulation import Emulation
from omnivore_ray.errors import OmnivoreError

_MOST_AUTOMATIC_DEVICES = 8


@dataclass(frozen=True, kw_only=True, slots=True)
class Device:
    """What one worker reserves, and how fast it is.

    Attributes:
        cpus: CPU cores it reserves; 1 by default, 0 for a GPU or an emulated device.
        gpus: GPUs it reserves, 0 or 1.
        speed: Its speed over the others', in any common unit; a group's batch is shared in
            proportion. By default an emulated device's rate, else its number of cores. Give
            every device of a run a speed, or none.
        emulate: Makes it an emulated device: real gradients at a paced rate.
    """

    cpus: int | None = None
    gpus: int = 0
    speed: float | None = None
    emulate: Emulation | None = None

    def __post_init__(self) -> None:
        if self.gpus not in (0, 1) or isinstance(self.gpus, bool):
            raise ValueError(
                f"Device.gpus={self.gpus!r}: a device has 0 or 1 GPU; list more devices"
            )
        if self.cpus is not None and (
            isinstance(self.cpus, bool) or not isinstance(self.cpus, int) or self.cpus < 0
        ):
            raise ValueError(f"Device.cpus={self.cpus!r}: give a whole number of cores, 0 or more")
        if self.cpus == 0 and not self.gpus and self.emulate is None:
            raise ValueError("Device.cpus=0: only a GPU or an emulated device can do without")
        speed = self.speed
        if speed is not None and (
            isinstance(speed, bool)
            or not isinstance(speed, (int, float))
            or not math.isfinite(speed)
            or speed <= 0
        ):
            raise ValueError(f"Device.speed={speed!r}: give a finite number above 0")
        if self.emulate is not None and not isinstance(self.emulate, Emulation):
            raise ValueError(f"Device.emulate={self.emulate!r}: give an Emulation(...)")

    @property
    def kind(self) -> Literal["emulated", "gpu", "cpu"]:
        """What it is, in tables and names."""
        if self.emulate is not None:
            return "emulated"
        return "gpu" if self.gpus else "cpu"

    @property
    def reserved_cpus(self) -> int:
        """Cores it reserves in the cluster."""
        if self.cpus is not None:
            return self.cpus
        return 1 if self.kind == "cpu" else 0

    @property
    def bundle(self) -> dict[str, float]:
        """Its resources, as a bundle of a Ray placement group; empty when it reserves none."""
        resources = {"CPU": float(self.reserved_cpus), "GPU": float(self.gpus)}
        return {name: amount for name, amount in resources.items() if amount}


def device_names(devices: Sequence[Device]) -> list[str]:
    """A name for each device: its kind and its number in the fleet."""
    return [f"{device.kind}-{number}" for number, device in enumerate(devices)]


def device_speeds(devices: Sequence[Device]) -> list[float]:
    """The speed of each device, in one unit.

    Raises:
        ValueError: Some devices have a speed and some have none.
    """
    given = [device.speed is not None for device in devices]
    if any(given) != all(given):
        raise ValueError(
            f"devices: {sum(given)} of {len(devices)} have a speed=; give one to all, or to none"
        )
    kinds = {device.kind for device in devices}
    if not all(given) and len(kinds) > 1:
        raise ValueError(
            f"devices of several kinds ({', '.join(sorted(kinds))}) have no common unit of speed; "
            "give each one speed=, for example its samples per second"
        )
    return [
        device.speed
        if device.speed is not None
        else device.emulate.samples_per_s
        if device.emulate is not None
        else float(device.reserved_cpus or 1)
        for device in devices
    ]


def check_devices(devices: Any) -> None:
    """Refuses what is not a legal ``devices=``; needs no cluster.

    Raises:
        ValueError: Naming the value and the fix.
    """
    if devices == "auto":
        return
    if isinstance(devices, int) and not isinstance(devices, bool) and devices >= 1:
        return
    if (
        isinstance(devices, (list, tuple))
        and devices
        and all(isinstance(device, Device) for device in devices)
    ):
        device_speeds(devices)
        return
    raise ValueError(
        f"devices={devices!r}: give 'auto', a number of one-core devices, or a list of Device(...)"
    )


def resolve_devices(
    devices: Literal["auto"] | int | Sequence[Device], nodes: Sequence[dict[str, float]]
) -> tuple[Device, ...]:
    """The devices of a run.

    "auto": each GPU is a device; in a cluster without GPUs, each node's CPUs are one; on a single
    machine without a GPU each core is one, at most 8.

    Args:
        devices: See `check_devices`.
        nodes: Resources of each live node of the cluster, as Ray reports them.

    Raises:
        ValueError: ``devices`` is not legal.
        OmnivoreError: The cluster has fewer resources than the devices ask for.
    """
    check_devices(devices)
    if devices == "auto":
        resolved = _automatic(nodes)
    elif isinstance(devices, int):
        resolved = [Device() for _ in range(devices)]
    else:
        resolved = list(devices)
    for resource in ("CPU", "GPU"):
        asked = sum(device.bundle.get(resource, 0.0) for device in resolved)
        there = sum(node.get(resource, 0.0) for node in nodes)
        if asked > there:
            raise OmnivoreError(
                f"devices ask for {asked:g} {resource}s and the cluster has {there:g}; "
                "use fewer devices, or start Ray with more"
            )
        largest = max((device.bundle.get(resource, 0.0) for device in resolved), default=0.0)
        if largest > max((node.get(resource, 0.0) for node in nodes), default=0.0):
            raise OmnivoreError(
                f"a device asks for {largest:g} {resource}s and no node has that many"
            )
    return tuple(resolved)


def _automatic(nodes: Sequence[dict[str, float]]) -> list[Device]:
    gpus = [int(node.get("GPU", 0)) for node in nodes]
    cpus = [int(node.get("CPU", 0)) for node in nodes]
    if len(nodes) == 1 and not gpus[0]:
        return [Device() for _ in range(max(1, min(cpus[0], _MOST_AUTOMATIC_DEVICES)))]
    if sum(gpus):  # until devices are calibrated nothing says how a GPU compares to cores
        return [Device(gpus=1) for _ in range(sum(gpus))]
    return [Device(cpus=count) for count in cpus if count]


def wait_until_free(devices: Sequence[Device], timeout_s: float = 30.0) -> None:
    """Waits until what the devices reserve is not in use: Tune itself would wait for ever.

    Raises:
        OmnivoreError: It is still in use after ``timeout_s``.
    """
    import ray

    deadline_s = time.monotonic() + timeout_s
    for resource in ("CPU", "GPU"):
        asked = sum(device.bundle.get(resource, 0.0) for device in devices)
        while (free := ray.available_resources().get(resource, 0.0)) < asked:
            if time.monotonic() > deadline_s:
                raise OmnivoreError(
                    f"devices ask for {asked:g} {resource}s and {free:g} of the cluster's are free "
                    f"after {timeout_s:g} s; use fewer devices, or end what uses the others"
                )
            time.sleep(0.5)
