"""Calls to a vendor's Python device module (`torch.npu`, `torch.mlu`, ...), always for one device index.

Such modules agree on names and on little else: a function may take a device, act on the current one, or be missing.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import torch

from noria.errors import UnsupportedOperation

# torch.cuda is asked only through PyTorch's C++ side, which knows it in every build; torch.cpu has streams that are
# placeholders; meta has no module.
NEVER_ASKED = frozenset({"cuda", "cpu", "meta"})


def module_of(device_type: str) -> ModuleType | None:
    """The device module that torch has for a type, None where it has none."""
    module = getattr(torch, device_type, None)
    if module is None or device_type == "meta":
        return None
    return module  # type: ignore[no-any-return]


def takes_device(function: Callable[..., Any]) -> bool:
    """True when `function` may be called with one positional argument. Unknown signatures count as not."""
    try:
        inspect.signature(function).bind(0)
    except (TypeError, ValueError):
        return False
    return True


class DeviceModule:
    """A device module bound to one index.

    Args:
        module: the module, or anything with such attributes.
        device: the device that every call is for.
    """

    def __init__(self, module: Any, device: torch.device) -> None:
        self.module = module
        self.device = device

    @property
    def index(self) -> int:
        return self.device.index or 0

    def has(self, name: str) -> bool:
        return callable(getattr(self.module, name, None))

    def count(self) -> int:
        """The number of devices; a module that cannot count has one if it says it is available."""
        if self.has("is_available") and not self.module.is_available():
            return 0
        if self.has("device_count"):
            return int(self.module.device_count())
        return 1 if self.has("is_available") else 0

    def current_device(self) -> int:
        return int(self.module.current_device()) if self.has("current_device") else 0

    def set_device(self, index: int) -> None:
        if self.has("set_device"):
            self.module.set_device(index)
        elif index != self.current_device():
            raise UnsupportedOperation(f"{self.device} does not support set_device: its module has no such function")

    @contextlib.contextmanager
    def on_device(self) -> Iterator[None]:
        """Makes this index the current device inside the block; the caller's comes back, also after an exception."""
        before = self.current_device()
        if before == self.index:
            yield
            return
        self.set_device(self.index)
        try:
            yield
        finally:
            self.set_device(before)

    def call(self, name: str) -> Any:
        """Calls a function that is about one device: with the index where it takes one, else on the current device."""
        function = getattr(self.module, name)
        if takes_device(function):
            return function(self.index)
        with self.on_device():
            return function()

    def call_here(self, name: str, *args: Any, **kwargs: Any) -> Any:
        """Calls a function with these arguments while this index is the current device."""
        with self.on_device():
            return getattr(self.module, name)(*args, **kwargs)

    def new_stream(self, priority: int) -> Any:
        """A stream of this index. Not every Stream takes a device or a priority."""
        stream_class = self.module.Stream
        with self.on_device():
            for arguments in ({"device": self.device, "priority": priority}, {"priority": priority}):
                try:
                    inspect.signature(stream_class).bind(**arguments)
                except TypeError:
                    continue
                except ValueError:  # no signature to look at
                    try:
                        return stream_class(**arguments)
                    except TypeError:
                        continue
                return stream_class(**arguments)
            return stream_class()

    @contextlib.contextmanager
    def stream_is_current(self, stream: Any) -> Iterator[None]:
        """Makes `stream` and this device current inside the block, by whatever the module offers for it."""
        with self.on_device():
            if self.has("stream"):
                manager = self.module.stream(stream)
            elif not self.has("set_stream") and hasattr(stream, "__enter__"):
                manager = stream
            else:
                manager = None
            if hasattr(manager, "__enter__"):
                with manager:
                    yield
                return
            if not (self.has("set_stream") and self.has("current_stream")):
                raise UnsupportedOperation(
                    f"{self.device} does not support stream: its module can make a stream and has no way to make it "
                    "current (neither stream() nor set_stream(), and its streams are no context managers)"
                )
            before = self.call("current_stream")
            self.module.set_stream(stream)
            try:
                yield
            finally:
                self.module.set_stream(before)
