"""What a machine's devices offer and why each thing that is off is off, as plain data."""

from __future__ import annotations

from typing import Any

import torch

from noria.device import registry
from noria.device.backend import TorchDeviceBackend
from noria.device.capabilities import NAMES
from noria.errors import Error


def describe(device: Any = None) -> dict[str, Any]:
    """One device: `device, type, index, count, served_by, capabilities, why_not, memory`.

    `why_not` has a reason for each capability that is off; `memory` is free and total bytes, or None.
    """
    backend = device if isinstance(device, TorchDeviceBackend) else TorchDeviceBackend(device)
    offers = backend.capabilities
    memory = None
    if offers.memory_info:
        free, total = backend.mem_get_info()
        memory = {"free_bytes": free, "total_bytes": total}
    return {
        "device": str(backend.device),
        "type": backend.type,
        "index": backend.index,
        "count": backend.device_count(),
        "served_by": backend.served_by(),
        "capabilities": {name: getattr(offers, name) for name in NAMES},
        "why_not": {name: backend.why_not(name) for name in NAMES if not getattr(offers, name)},
        "memory": memory,
    }


def machine() -> dict[str, Any]:
    """This machine: `torch, chosen, usable, backends, devices`; a device that cannot be described carries `error`."""
    usable = registry.usable()
    devices: list[dict[str, Any]] = []
    for device_type in usable:
        try:
            devices += [describe(name) for name in _each(device_type)]
        except (Error, RuntimeError, ValueError, TypeError) as error:
            devices.append({"device": device_type, "error": f"{type(error).__name__}: {error}"})
    return {
        "torch": torch.__version__,
        "chosen": usable[0],
        "usable": usable,
        "backends": registry.device_backends(),
        "devices": devices,
    }


def _each(device_type: str) -> list[str]:
    count = TorchDeviceBackend(device_type).device_count()
    return [device_type] if device_type == "cpu" else [f"{device_type}:{index}" for index in range(count)]
