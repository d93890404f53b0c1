"""Streams and events of devices that do everything at once, and the context that makes a stream current."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from noria._C import Event as _Event
    from noria.device.stream_calls import StreamCalls


class SynchronousStream:
    """The queue of a device whose calls return when their work is done, or which has one queue for all work.

    It has the methods of `torch.Stream`, so that code written for streams runs. Streams of the cpu can be made current;
    the one queue of a device without streams always is.

    Attributes:
        device: the device it belongs to.
        stream_id: 0 for the default queue.
    """

    def __init__(self, backend: StreamCalls, stream_id: int = 0) -> None:
        self._backend = backend
        self._entered: list[contextlib.AbstractContextManager[Any]] = []
        self.stream_id = stream_id

    @property
    def device(self) -> torch.device:
        return self._backend.device

    def synchronize(self) -> None:
        """Returns when the work of the device is done."""
        self._backend.synchronize()

    def query(self) -> bool:
        """True: what was given is done. On a device with one queue this waits for it."""
        self.synchronize()
        return True

    def wait_stream(self, stream: object) -> None:
        """Nothing to wait for: work runs in the order in which it was given."""

    def wait_event(self, event: object) -> None:
        """Nothing to wait for: work runs in the order in which it was given."""

    def record_event(self, event: Any = None) -> Any:
        """Marks the end of the work so far in `event`, or in a new one; returns it."""
        event = self._backend.Event() if event is None else event
        if not hasattr(event, "record"):
            raise TypeError(f"record_event takes an event or None, not {event!r}")
        event.record(self) if isinstance(event, SynchronousEvent) else event.record()
        return event

    def __enter__(self) -> SynchronousStream:
        manager = self._backend.stream(self)
        manager.__enter__()
        self._entered.append(manager)
        return self

    def __exit__(self, *error: Any) -> None:
        self._entered.pop().__exit__(*error)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, SynchronousStream):
            return NotImplemented
        return (self.device, self.stream_id) == (other.device, other.stream_id)

    def __hash__(self) -> int:
        return hash((self.device, self.stream_id))

    def __repr__(self) -> str:
        return f"SynchronousStream(device='{self.device}', stream_id={self.stream_id})"


class SynchronousEvent:
    """An event of the cpu: done as soon as it is recorded, with the host's clock."""

    def __init__(self, backend: StreamCalls, event: _Event, enable_timing: bool) -> None:
        self._backend = backend
        self._event = event
        self._timing = enable_timing

    @property
    def device(self) -> torch.device:
        return self._backend.device

    def record(self, stream: SynchronousStream | None = None) -> None:
        if stream is not None and not isinstance(stream, SynchronousStream):
            raise TypeError(f"record takes a stream of {self.device} or None, not {stream!r}")
        native = self._backend._native
        assert native is not None
        self._event.record(native, 0 if stream is None else stream.stream_id)

    def wait(self, stream: object = None) -> None:
        """Nothing to wait for."""

    def query(self) -> bool:
        return self._event.query()

    def synchronize(self) -> None:
        self._event.synchronize()

    def elapsed_time(self, end_event: SynchronousEvent) -> float:
        """Milliseconds from this event to `end_event`, as `torch.Event` gives them."""
        if not isinstance(end_event, SynchronousEvent):
            raise TypeError(f"elapsed_time takes an event of {self.device}, not {end_event!r}")
        if not (self._timing and end_event._timing):
            raise ValueError("both events must be made with enable_timing=True")
        return self._event.elapsed_seconds(end_event._event) * 1e3


@contextlib.contextmanager
def native_stream_is_current(backend: StreamCalls, stream_id: int) -> Iterator[None]:
    """Makes a stream of PyTorch's C++ side, and its device, current; both come back, also after an exception."""
    native = backend._native
    assert native is not None
    device_before = native.set_current_device()
    try:
        stream_before = native.set_current_stream(stream_id)
        try:
            yield
        finally:
            native.set_current_stream(stream_before)
    finally:
        native.restore_current_device(device_before)
