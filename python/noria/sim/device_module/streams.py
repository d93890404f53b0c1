"""Streams and events: PyTorch's generic ones, under the names that torch.cuda has."""

from __future__ import annotations

from types import TracebackType
from typing import Any

import torch

from noria import _sim
from noria.sim.device_module.devices import DeviceLike, device_index

_DEVICE_TYPE = 20  # c10::DeviceType::PrivateUse1


class Stream(torch.Stream):
    """A queue of work of a simulated device."""

    def __new__(cls, device: DeviceLike = None, priority: int = 0, **kwargs: Any) -> Stream:
        """A new stream of `device`; lower `priority` is more urgent."""
        if "stream_id" in kwargs:
            return super().__new__(cls, priority=priority, **kwargs)
        return super().__new__(cls, device=torch.device("sim", device_index(device)), priority=priority)

    @property
    def sim_stream(self) -> int:
        """The number of the stream, as in the reports of the simulator."""
        return self.stream_id


class _EventType(type):
    """Lets `Event` be called and asked about like a class, though PyTorch takes no subclass of torch.Event."""

    def __call__(
        cls, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False, device: DeviceLike = None
    ) -> torch.Event:
        if interprocess:
            raise RuntimeError("the simulator has no events between processes")
        on = torch.device("sim", device_index(device))
        return torch.Event(on, enable_timing=enable_timing, blocking=blocking)

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, torch.Event) and instance.device.type == "sim"


class Event(metaclass=_EventType):
    """A point in the work of a stream, a torch.Event; with `enable_timing` it reads the virtual clock."""


def _stream(device: int, stream_id: int) -> Stream:
    return Stream(stream_id=stream_id, device_index=device, device_type=_DEVICE_TYPE)


def current_stream(device: DeviceLike = None) -> Stream:
    """The calling thread's stream of `device`."""
    index = device_index(device)
    return _stream(index, _sim.current_stream_id(index))


def default_stream(device: DeviceLike = None) -> Stream:
    """The stream that `device` starts with."""
    return _stream(device_index(device), 0)


def set_stream(stream: torch.Stream) -> None:
    """Makes `stream` the calling thread's stream of its device."""
    _sim.set_stream(stream.device_index, stream.stream_id)


def synchronize(device: DeviceLike = None) -> None:
    """Waits for everything given to `device`."""
    _sim.synchronize(device_index(device))


class StreamContext:
    """Context manager that makes a stream, and its device, current. None does nothing."""

    def __init__(self, stream: torch.Stream | None) -> None:
        self.stream = stream
        self._previous: tuple[int, int, int] | None = None

    def __enter__(self) -> torch.Stream | None:
        if self.stream is not None:
            index = self.stream.device_index
            device_before = _sim.exchange_device(index)
            self._previous = (device_before, index, _sim.current_stream_id(index))
            set_stream(self.stream)
        return self.stream

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._previous is not None:
            device_before, index, stream_before = self._previous
            _sim.set_stream(index, stream_before)
            _sim.exchange_device(device_before)
            self._previous = None


def stream(stream: torch.Stream | None) -> StreamContext:
    """Context manager that makes `stream` current."""
    return StreamContext(stream)
