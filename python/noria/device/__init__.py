"""One object per device: `TorchDeviceBackend`, its registry, and three one-line conveniences over it."""

from __future__ import annotations

from noria.device.backend import TorchDeviceBackend
from noria.device.capabilities import Capabilities
from noria.device.registry import device_backends, register_device_backend

__all__ = [
    "Capabilities",
    "TorchDeviceBackend",
    "device_backends",
    "empty_device_cache",
    "get_device",
    "register_device_backend",
    "synchronize",
]


def get_device() -> str:
    """The type of the best accelerator that can be used now, else "cpu". Asks anew at each call."""
    return TorchDeviceBackend().type


def empty_device_cache(device: object = None) -> None:
    """Gives the freed memory that the device's allocator keeps back to the device."""
    TorchDeviceBackend(device).empty_cache()


def synchronize(device: object = None) -> None:
    """Returns when all work given to the device is done."""
    TorchDeviceBackend(device).synchronize()
