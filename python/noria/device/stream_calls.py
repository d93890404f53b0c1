"""The streams and events of a backend."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import torch

from noria._argument_types import check_types
from noria.device.base import BackendBase
from noria.device.streams import SynchronousEvent, SynchronousStream, native_stream_is_current


class StreamCalls(BackendBase):
    """Streams, events and waiting."""

    @property
    def Stream(self) -> Callable[..., Any]:
        """Makes a stream of this device: `Stream(*, priority=0)`. Absent where the device has one queue only."""
        if self.type != "cpu" and not self.capabilities.streams:
            raise self._unsupported("Stream", self.why_not("streams"))
        return self._new_stream

    def _new_stream(self, *unnamed: Any, priority: int = 0) -> Any:
        if unnamed:
            raise TypeError(f"the priority of a stream is given by name, as Stream(priority=-1); got Stream{unnamed!r}")
        if not isinstance(priority, int):
            raise TypeError(f"priority is an int, lower runs first; not {priority!r}")
        if self._native is not None and (self.type == "cpu" or self._by_native("streams")):
            return self._wrap(self._native.new_stream(priority))
        assert self._vendor is not None
        return self._vendor.new_stream(priority)

    def stream_or_none(self, *, priority: int = 0) -> Any:
        """A new stream, or None where the device has one queue only or works synchronously."""
        return self._new_stream(priority=priority) if self.capabilities.streams else None

    def _wrap(self, stream_id: int) -> Any:
        """A stream of the C++ side as the class that users of this device know."""
        native = self._native
        assert native is not None
        if self.type == "cpu" or not self._by_native("streams"):
            return SynchronousStream(self, stream_id)
        fields = {"stream_id": stream_id, "device_index": native.index, "device_type": native.device_type}
        own = getattr(self._module, "Stream", None)
        if isinstance(own, type) and issubclass(own, torch.Stream):
            with contextlib.suppress(TypeError):
                return own(**fields)
        return torch.Stream(**fields)

    def current_stream(self) -> Any:
        """The calling thread's current stream on this device."""
        if self._by_module("streams"):
            vendor = self._vendor
            assert vendor is not None
            if not vendor.has("current_stream"):
                raise self._unsupported("current_stream", f"torch.{self.type} has no such function")
            return vendor.call("current_stream")
        return self._wrap(self._native.current_stream()) if self._native is not None else SynchronousStream(self)

    def default_stream(self) -> Any:
        """The stream of a thread that has set none; where a device does not name it (xpu), the current one."""
        if self._by_module("streams"):
            assert self._vendor is not None
            return self._vendor.call("default_stream") if self._vendor.has("default_stream") else self.current_stream()
        return self._wrap(self._native.default_stream()) if self._native is not None else SynchronousStream(self)

    def stream(self, stream: Any) -> contextlib.AbstractContextManager[Any]:
        """Makes `stream` and this device current inside a `with` block. None changes nothing."""
        if stream is None:
            return contextlib.nullcontext()
        if isinstance(stream, SynchronousStream):
            self._check_stream_device(stream.device)
            if self.type == "cpu":
                return native_stream_is_current(self, stream.stream_id)
            return contextlib.nullcontext(stream)
        if self._by_module("streams"):
            assert self._vendor is not None
            if isinstance(getattr(stream, "device", None), torch.device):
                self._check_stream_device(stream.device)
            return self._vendor.stream_is_current(stream)
        if not isinstance(stream, torch.Stream):
            raise TypeError(f"a stream of {self._device} or None, not {stream!r}")
        self._check_stream_device(stream.device)
        if not self._by_native("streams"):
            raise self._unsupported("stream", self.why_not("streams"))
        return native_stream_is_current(self, stream.stream_id)

    def _check_stream_device(self, device: torch.device) -> None:
        if (device.type, device.index or 0) != (self.type, self.index or 0):
            raise ValueError(f"the stream belongs to {device}, and this is the backend of {self._device}")

    def Event(self, enable_timing: bool = False) -> Any:
        """A point in the work of a stream, with the methods of `torch.Event`."""
        check_types(enable_timing=(enable_timing, bool))
        needed = "event_timing" if enable_timing else "events"
        if not getattr(self.capabilities, needed):
            raise self._unsupported("Event(enable_timing=True)" if enable_timing else "Event", self.why_not(needed))
        if self.type == "cpu":
            assert self._native is not None
            return SynchronousEvent(self, self._native.new_event(enable_timing), enable_timing)
        if self._vendor is not None and self._vendor.has("Event"):
            return self._vendor.call_here("Event", enable_timing=enable_timing)
        return torch.Event(device=self._device, enable_timing=enable_timing)

    def synchronize(self) -> None:
        """Returns when all work given to this device is done."""
        if self._native is not None:
            self._native.synchronize()
        elif self._vendor is not None and self._vendor.has("synchronize"):
            self._vendor.call("synchronize")
        elif self.capabilities.streams:
            raise self._unsupported("synchronize", f"torch.{self.type} has no such function")
