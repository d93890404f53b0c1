"""Devices: how many, which is current, what they are."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from types import TracebackType
from typing import Any, TypeAlias

import torch

from noria import _sim

DeviceLike: TypeAlias = torch.device | str | int | None

_in_bad_fork = False


def _mark_bad_fork() -> None:
    global _in_bad_fork
    _in_bad_fork = True


os.register_at_fork(after_in_child=_mark_bad_fork)


def _is_in_bad_fork() -> bool:
    """True in a forked child: the simulator's state belongs to the parent."""
    return _in_bad_fork


def device_index(device: DeviceLike, *, optional: bool = True) -> int:
    """The index that `device` names; None and a device without an index are the current one."""
    if device is None:
        if not optional:
            raise ValueError("a device is needed")
        return current_device()
    if isinstance(device, int):
        return device
    if isinstance(device, str):
        device = torch.device(device)
    if device.type != "sim":
        raise ValueError(f"expected a sim device, not {device}")
    return current_device() if device.index is None else device.index


def init() -> None:
    """Does nothing: `noria.sim.enable()` has done it."""


def is_initialized() -> bool:
    """True: this module exists only once the simulator is enabled."""
    return True


def is_available() -> bool:
    """Whether there is a simulated device."""
    return device_count() > 0


def device_count() -> int:
    """The number of simulated devices."""
    count: int = _sim.device_count()
    return count


def current_device() -> int:
    """Index of the calling thread's device."""
    index: int = _sim.current_device()
    return index


def set_device(device: DeviceLike) -> None:
    """Makes `device` the calling thread's; a negative index does nothing, as on CUDA."""
    index = device_index(device, optional=False)
    if index >= 0:
        _sim.exchange_device(index)


class device:
    """Context manager that makes a device current."""

    def __init__(self, device: DeviceLike) -> None:
        self.idx = device_index(device) if device is not None else -1
        self.prev_idx = -1

    def __enter__(self) -> None:
        self.prev_idx = _sim.exchange_device(self.idx) if self.idx >= 0 else -1

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.prev_idx >= 0:
            _sim.exchange_device(self.prev_idx)


class device_of(device):
    """Context manager that makes the device of a tensor current, if it is a simulated one."""

    def __init__(self, obj: torch.Tensor) -> None:
        super().__init__(obj.device if obj.device.type == "sim" else None)


@dataclass(frozen=True)
class DeviceProperties:
    """What a simulated device is.

    Attributes:
        name: the profile's name.
        total_memory: bytes.
        figures: every figure of the profile.
    """

    name: str
    total_memory: int
    figures: dict[str, Any]

    major: int = 0
    minor: int = 0
    multi_processor_count: int = 1


def get_device_properties(device: DeviceLike = None) -> DeviceProperties:
    """Name, memory and figures of a device."""
    index = device_index(device)
    total = _sim.memory_info(index)[1]
    return DeviceProperties(_sim.profile_name(index), total, json.loads(_sim.profile_json(index)))


def get_device_name(device: DeviceLike = None) -> str:
    """The name of the device's profile."""
    return get_device_properties(device).name


def get_device_capability(device: DeviceLike = None) -> tuple[int, int]:
    """(0, 0): the simulator is of no generation."""
    properties = get_device_properties(device)
    return properties.major, properties.minor


def get_amp_supported_dtype() -> list[torch.dtype]:
    """The types that `torch.autocast("sim")` can cast to."""
    return [torch.float16, torch.bfloat16]


def is_bf16_supported(including_emulation: bool = True) -> bool:
    """True."""
    return True
