"""VirtualCluster: devices, one link, servers and a head, each described by its speed.

A device that has computed its share of a batch exchanges parameters with the servers, gradient up
and parameters down: one visit of ``2 (alpha + bytes / rate)`` seconds to the one link that all
groups share. When the last member of a group is through, its batch visits the head server and
then the parameter server. Link and servers serve in order of arrival. This is the cluster of
`omnivore_ray.efficiency.hardware` with ``sends_when_ready``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from omnivore_ray.simulate.service_times import ServiceTimes
from omnivore_ray.strategy import Strategy
from omnivore_ray.update.groups import check_groups


@dataclass(frozen=True, kw_only=True, slots=True)
class VirtualDevice:
    """One black box.

    Attributes:
        samples_per_s: Mean rate at which it trains, > 0; also that of validation, as for an
            emulated device.
        service_times: How its step times vary around their mean.
        fails_at_s: Second of the run's clock at which it is lost for good; None for never.

    Raises:
        ValueError: A number is out of range.
    """

    samples_per_s: float
    service_times: ServiceTimes = field(default_factory=ServiceTimes)
    fails_at_s: float | None = None

    def __post_init__(self) -> None:
        _check_above_0("VirtualDevice.samples_per_s", self.samples_per_s)
        if not isinstance(self.service_times, ServiceTimes):
            raise ValueError(
                f"VirtualDevice.service_times={self.service_times!r}: give ServiceTimes(...), "
                "e.g. ServiceTimes('exponential')"
            )
        if self.fails_at_s is not None:
            _check_at_least_0("VirtualDevice.fails_at_s", self.fails_at_s)


@dataclass(frozen=True, kw_only=True, slots=True)
class Network:
    """The link between devices and servers.

    Attributes:
        bytes_per_s: Rate, > 0.
        alpha_s: Seconds that a transfer one way takes whatever its size.
        copy_bytes: Bytes of one copy of the parameters; None for those of the workload. Given, it
            makes the clock that of another, larger model.

    Raises:
        ValueError: A number is out of range.
    """

    bytes_per_s: float
    alpha_s: float = 0.0
    copy_bytes: float | None = None

    def __post_init__(self) -> None:
        _check_above_0("Network.bytes_per_s", self.bytes_per_s)
        _check_at_least_0("Network.alpha_s", self.alpha_s)
        if self.copy_bytes is not None:
            _check_at_least_0("Network.copy_bytes", self.copy_bytes)

    def transfer_s(self, num_bytes: float) -> float:
        """Seconds of one transfer one way.

        Args:
            num_bytes: The workload's; ``copy_bytes`` overrides it.
        """
        size = num_bytes if self.copy_bytes is None else self.copy_bytes
        return self.alpha_s + size / self.bytes_per_s


@dataclass(frozen=True, kw_only=True, slots=True)
class Server:
    """The parameter server.

    Attributes:
        update_s: Seconds it is busy for one update.

    Raises:
        ValueError: The number is out of range.
    """

    update_s: float = 0.0

    def __post_init__(self) -> None:
        _check_at_least_0("Server.update_s", self.update_s)


@dataclass(frozen=True, kw_only=True, slots=True)
class Head:
    """The head server: it computes and updates the head in one place, so that it is never stale.

    Attributes:
        batch_s: Seconds it is busy for one batch.

    Raises:
        ValueError: The number is out of range.
    """

    batch_s: float

    def __post_init__(self) -> None:
        _check_at_least_0("Head.batch_s", self.batch_s)


@dataclass(frozen=True, kw_only=True)
class VirtualCluster:
    """A cluster that does not exist.

    Attributes:
        devices: At least one.
        network: None for transfers that take no time.
        server: The parameter server.
        head: The head server; None when devices compute the whole model, all of it stale.

    Raises:
        ValueError: A part is missing or of the wrong type.
    """

    devices: Sequence[VirtualDevice]
    network: Network | None = None
    server: Server = field(default_factory=Server)
    head: Head | None = None

    def __post_init__(self) -> None:
        devices: Any = self.devices
        if (
            not isinstance(devices, Sequence)
            or not devices
            or not all(isinstance(device, VirtualDevice) for device in devices)
        ):
            raise ValueError(f"VirtualCluster.devices={devices!r}: give a list of VirtualDevice")
        object.__setattr__(self, "devices", tuple(devices))
        for name, kinds, wanted in (
            ("network", (Network, type(None)), "Network(...) or None"),
            ("server", (Server,), "Server(...)"),
            ("head", (Head, type(None)), "Head(...) or None"),
        ):
            value: Any = getattr(self, name)
            if not isinstance(value, kinds):
                raise ValueError(f"VirtualCluster.{name}={value!r}: give {wanted}")

    @classmethod
    def uniform(cls, num_devices: int, samples_per_s: float, **parts: Any) -> VirtualCluster:
        """Equal devices.

        Args:
            num_devices: How many, >= 1.
            samples_per_s: Rate of each.
            **parts: ``service_times`` of each device, and the other parts of the cluster.

        Raises:
            ValueError: A part is not legal.
        """
        if isinstance(num_devices, bool) or not isinstance(num_devices, int) or num_devices < 1:
            raise ValueError(f"num_devices={num_devices!r}: give a whole number of at least 1")
        service_times = parts.pop("service_times", ServiceTimes())
        device = VirtualDevice(samples_per_s=samples_per_s, service_times=service_times)
        return cls(devices=[device] * num_devices, **parts)

    @property
    def speeds(self) -> tuple[float, ...]:
        """Samples per second of each device, shape ``(N,)``."""
        return tuple(device.samples_per_s for device in self.devices)

    @property
    def head_batch_s(self) -> float:
        """Seconds of the head server for one batch, 0 without one."""
        return 0.0 if self.head is None else self.head.batch_s

    def transfer_s(self, num_bytes: float) -> float:
        """Seconds of one transfer of the workload's parameters one way; 0 without a network."""
        return 0.0 if self.network is None else self.network.transfer_s(num_bytes)

    def check(self, strategy: Strategy, batch_size: int) -> None:
        """Refuses a strategy that this cluster cannot run, as a real fleet does.

        Raises:
            ValueError: More groups than devices, or a batch smaller than a group.
        """
        check_groups(self.speeds, strategy.groups, batch_size)

    def __str__(self) -> str:
        parts = [
            f"{len(self.devices)} virtual devices of {sum(self.speeds):.6g} samples/s together"
        ]
        if self.network is not None:
            parts.append(f"a link of {self.network.bytes_per_s:.3g} bytes/s")
        parts.append(
            "no head server" if self.head is None else f"a head server of {self.head.batch_s:g} s"
        )
        return ", ".join(parts)


def _check_above_0(name: str, value: Any) -> None:
    if not _is_number(value) or not value > 0:
        raise ValueError(f"{name}={value!r}: give a finite number above 0")


def _check_at_least_0(name: str, value: Any) -> None:
    if not _is_number(value) or value < 0:
        raise ValueError(f"{name}={value!r}: give a finite number, 0 or more")


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
