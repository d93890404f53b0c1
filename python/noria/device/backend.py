"""`TorchDeviceBackend`: every call to one device, whichever vendor made it.

What PyTorch's C++ side can do for the device is done there (`noria._C.DeviceBackend`). Where only the vendor's Python
module has a call, the module is asked, under the same rules: this index, and the caller's device and stream as before.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from noria.device import registry
from noria.device.capabilities import Capabilities
from noria.device.memory_calls import MemoryCalls
from noria.device.random_calls import RandomCalls
from noria.device.stream_calls import StreamCalls


class _ThroughRegistry(type):
    """Calling `TorchDeviceBackend` gives what is registered for the device type; subclasses are made as usual."""

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        if "_made_through_registry" not in cls.__dict__:
            return super().__call__(*args, **kwargs)
        if len(args) + len(kwargs) > 1 or kwargs.keys() - {"device"}:
            given = ", ".join([*map(repr, args), *(f"{name}={value!r}" for name, value in kwargs.items())])
            raise TypeError(f"TorchDeviceBackend takes one argument, device, such as 'cuda:1'; it was given ({given})")
        return _make(super().__call__, *args, **kwargs)


def _make(built_in: Callable[..., Any], device: Any = None) -> Any:
    wanted = registry.best_device() if device is None else registry.parse_device(device)
    factory = registry.factory_of(wanted.type)
    if factory is None:
        return built_in(wanted)
    with registry.making(wanted.type):
        backend = factory(wanted)
    if not isinstance(backend, TorchDeviceBackend):
        raise TypeError(f"the factory of '{wanted.type}' gave {backend!r}, which is no TorchDeviceBackend")
    return backend


class TorchDeviceBackend(StreamCalls, MemoryCalls, RandomCalls, metaclass=_ThroughRegistry):
    """All calls to one device.

    Every call acts on the backend's own device index, whatever the current device is, and leaves the current device and
    stream as they were. What the device lacks raises `UnsupportedOperation`, which is an `AttributeError` too, so
    `hasattr` may ask. Attributes that are not listed here are those of the device's own module (`torch.cuda`, ...).

    Args:
        device: anything `torch.device` accepts; without an index, the current device of that type. None: the best
            accelerator that can be used now, else cpu.

    Raises:
        TypeError: `device` is not something that names a device.
        ValueError: no such device here; the text says which are.
    """

    _made_through_registry = True

    @staticmethod
    def _detect_device_type() -> str:
        """The name by which Diffusers asks for the best device of the host."""
        return registry.best_device().type

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, TorchDeviceBackend):
            return NotImplemented
        return type(self) is type(other) and self._device == other._device

    def __hash__(self) -> int:
        return hash(self._device)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._device,)

    def __repr__(self) -> str:
        on = [field.name for field in dataclasses.fields(Capabilities) if getattr(self.capabilities, field.name)]
        return f"{type(self).__name__}('{self._device}': {', '.join(on)})"
