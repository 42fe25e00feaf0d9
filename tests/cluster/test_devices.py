from __future__ import annotations

import pytest
import ray

from omnivore_ray import Device, Emulation, OmnivoreError
from omnivore_ray.cluster.devices import (
    check_devices,
    device_speeds,
    resolve_devices,
    wait_until_free,
)

PACED = Emulation(samples_per_s=10)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"gpus": 2}, "Device.gpus=2"),
        ({"cpus": -1}, "Device.cpus=-1"),
        ({"cpus": 0}, "Device.cpus=0"),
        ({"cpus": 1.5}, "Device.cpus=1.5"),
        ({"speed": 0}, "Device.speed=0"),
        ({"emulate": 3}, "Device.emulate=3"),
    ],
)
def test_illegal_devices_are_named(fields, said):
    with pytest.raises(ValueError, match=said):
        Device(**fields)


@pytest.mark.parametrize("devices", ["all", 0, True, [], [1], {"cpus": 1}])
def test_what_is_no_list_of_devices_is_refused(devices):
    with pytest.raises(ValueError, match="give 'auto', a number of one-core devices, or a list"):
        check_devices(devices)


def test_speeds_have_one_unit_or_are_refused():
    assert device_speeds([Device(cpus=2), Device()]) == [2.0, 1.0]
    assert device_speeds([Device(emulate=PACED)] * 2) == [10.0, 10.0]
    assert device_speeds([Device(speed=3.0), Device(emulate=PACED, speed=1.0)]) == [3.0, 1.0]
    with pytest.raises(ValueError, match="1 of 2 have a speed"):
        device_speeds([Device(speed=3.0), Device()])
    with pytest.raises(ValueError, match="cpu, emulated"):
        device_speeds([Device(), Device(emulate=PACED)])


def test_what_a_device_reserves():
    assert Device().bundle == {"CPU": 1.0}
    assert Device(gpus=1).bundle == {"GPU": 1.0}
    assert Device(gpus=1, cpus=2).bundle == {"CPU": 2.0, "GPU": 1.0}
    assert Device(emulate=PACED).bundle == {}


def test_automatic_devices_follow_the_nodes():
    one = resolve_devices("auto", [{"CPU": 4.0}])
    assert one == (Device(),) * 4
    assert len(resolve_devices("auto", [{"CPU": 64.0}])) == 8
    assert resolve_devices("auto", [{"CPU": 4.0}, {"CPU": 2.0}]) == (Device(cpus=4), Device(cpus=2))
    assert resolve_devices("auto", [{"CPU": 4.0, "GPU": 2.0}]) == (Device(gpus=1),) * 2
    assert resolve_devices(3, [{"CPU": 4.0}]) == (Device(),) * 3


def test_more_than_the_cluster_has_is_refused_with_numbers():
    with pytest.raises(OmnivoreError, match="ask for 5 CPUs and the cluster has 4"):
        resolve_devices(5, [{"CPU": 2.0}, {"CPU": 2.0}])
    with pytest.raises(OmnivoreError, match="a device asks for 4 CPUs and no node"):
        resolve_devices([Device(cpus=4)], [{"CPU": 2.0}, {"CPU": 2.0}])
    with pytest.raises(OmnivoreError, match="1 GPUs and the cluster has 0"):
        resolve_devices([Device(gpus=1)], [{"CPU": 2.0}])


def test_devices_that_others_use_are_waited_for_but_not_for_ever(ray_session):
    holder = ray.remote(Holder).options(num_cpus=7).remote()
    ray.get(holder.there.remote())
    wait_until_free([Device()])
    with pytest.raises(OmnivoreError, match="ask for 2 CPUs and 1 of the cluster's are free"):
        wait_until_free([Device(), Device()], timeout_s=1.0)
    ray.kill(holder)
    wait_until_free([Device(), Device()])


class Holder:
    def there(self) -> bool:
        return True
