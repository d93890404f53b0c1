"""What every part of a backend stands on: the device, its two sides, what it offers, and what is forwarded.

PyTorch's C++ side is `_native` (`noria._C.DeviceBackend`); the vendor's Python module is `_vendor`. Either may be None.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
from typing import Any

import torch

from noria import _C
from noria.device import module_probe, registry
from noria.device.capabilities import NAMES, Capabilities
from noria.device.module import NEVER_ASKED, DeviceModule, module_of
from noria.errors import UnsupportedOperation

_said: set[tuple[torch.device, str]] = set()
# What a device's Python module offers, by device; with the module that was asked, since plug-ins may replace theirs.
_probed: dict[torch.device, tuple[Any, set[str], dict[str, str]]] = {}


class BackendBase:
    """The device of a backend, and everything that is not a call to it."""

    def __init__(self, device: Any = None) -> None:
        wanted = registry.best_device() if device is None else registry.parse_device(device)
        self._native: _C.DeviceBackend | None = None
        self._vendor: DeviceModule | None = None
        refusal = ""
        try:
            self._native = _C.device_backend(wanted)
        except ValueError as error:
            refusal = str(error)
        module = module_of(wanted.type) if self._native is not None or wanted.type not in NEVER_ASKED else None
        if self._native is not None:
            self._device = wanted
            if self._native.index >= 0:
                self._device = torch.device(wanted.type, self._native.index)
        else:
            self._device = self._through_module(wanted, module, refusal)
        self._module = module
        if module is not None and wanted.type not in NEVER_ASKED:
            self._vendor = DeviceModule(module, self._device)
        self._native_on: frozenset[str] | None = None
        self._capabilities: Capabilities | None = None
        self._reasons: dict[str, str] = {}

    def _through_module(self, wanted: torch.device, module: Any, refusal: str) -> torch.device:
        """The device with its index where only a Python module knows it; ValueError where that does not either."""
        count = 0
        if module is not None and wanted.type not in _C.usable_device_types():
            count = DeviceModule(module, wanted).count()
        if count > 0:
            index = wanted.index if wanted.index is not None else DeviceModule(module, wanted).current_device()
            if index < count:
                return torch.device(wanted.type, index)
            names = f"{wanted.type}:0 to {wanted.type}:{count - 1}" if count > 1 else f"{wanted.type}:0"
            refusal = f"device '{wanted}' cannot be used: there is {names}"
        elif "_made_through_registry" not in type(self).__dict__:
            return wanted  # a vendor's own class may know what nobody here does
        raise ValueError(refusal)

    @property
    def device(self) -> torch.device:
        """The device it is bound to; with an index, cpu and meta excepted where none was given."""
        return self._device

    @property
    def type(self) -> str:
        return self._device.type

    @property
    def index(self) -> int | None:
        return self._device.index

    @property
    def module(self) -> Any:
        """The device module of torch (`torch.cuda`, `torch.npu`, ...), None where there is none."""
        return self._module

    @property
    def capabilities(self) -> Capabilities:
        """What the device offers; found out at the first call."""
        if self._capabilities is None:
            self._capabilities = self._probe()
        return self._capabilities

    def why_not(self, capability: str) -> str:
        """Why a capability is off; "" when it is on."""
        if capability not in NAMES:
            raise ValueError(f"no capability is named {capability!r}; there are {', '.join(NAMES)}")
        if getattr(self.capabilities, capability):
            return ""
        return self._reasons.get(capability, "the device does not offer it")

    def served_by(self) -> str:
        """What answers the calls: PyTorch's C++ side, the device's Python module, or both."""
        sides = ["PyTorch's C++ interfaces"] if self._native is not None else []
        if self._vendor is not None and (self._native is None or _probed.get(self._device, (None, ()))[1]):
            sides.append(f"torch.{self.type}")
        return " and ".join(sides) or type(self).__name__

    def _probe(self) -> Capabilities:
        native = self._native.capabilities() if self._native is not None else dict.fromkeys(NAMES, False)
        on = {name for name, value in native.items() if value}
        if self._native is not None:
            self._reasons = {name: self._native.why_not(name) for name in NAMES if name not in on}
        if self._vendor is not None:
            known = _probed.get(self._device)
            if known is None or known[0] is not self._vendor.module:
                wanted = set(NAMES) - on - ({"float64", "int64", "bfloat16"} if self._native is not None else set())
                known = (self._vendor.module, *module_probe.probe(self._vendor, wanted))
                _probed[self._device] = known
            on |= known[1]
            self._reasons = {**self._reasons, **known[2]} if self._native is None else self._reasons
        if {"streams", "events", "pinned_memory"} <= on:
            on.add("async_copies")
        self._reasons = {name: reason for name, reason in self._reasons.items() if name not in on}
        return Capabilities(**{name: name in on for name in NAMES})

    def _by_native(self, capability: str) -> bool:
        if self._native_on is None:
            offers = self._native.capabilities() if self._native is not None else {}
            self._native_on = frozenset(name for name, on in offers.items() if on)
        return capability in self._native_on

    def _by_module(self, capability: str) -> bool:
        return self._vendor is not None and not self._by_native(capability) and getattr(self.capabilities, capability)

    def _unsupported(self, operation: str, reason: str) -> UnsupportedOperation:
        return UnsupportedOperation(f"{self._device} does not support {operation}: {reason}")

    def _say_once(self, operation: str) -> bool:
        key = (self._device, operation)
        if key in _said:
            return False
        _said.add(key)
        return True

    def is_available(self) -> bool:
        """True while the device can be used."""
        if self._native is not None:
            return self._native.device_count() > (self.index or 0)
        return self._vendor is not None and self._vendor.count() > (self.index or 0)

    def device_count(self) -> int:
        """The number of devices of this type."""
        if self._native is not None:
            return self._native.device_count()
        return self._vendor.count() if self._vendor is not None else 0

    def current_device(self) -> int:
        """The calling thread's current device index of this type."""
        if self._native is not None:
            return self._native.current_device()
        return self._vendor.current_device() if self._vendor is not None else 0

    def set_device(self, device: Any = None) -> None:
        """Makes this backend's device the calling thread's current one; or another index of the same type."""
        if device is not None:
            other = torch.device(self.type, device) if isinstance(device, int) else registry.parse_device(device)
            if other.type != self.type:
                raise ValueError(f"this is the backend of {self._device}; it cannot make {other} current")
            if other.index is not None and other.index != (self.index or 0):
                type(self)(other).set_device()
                return
        if self._native is not None:
            self._native.set_current_device()
        elif self._vendor is not None:
            self._vendor.set_device(self._vendor.index)
        else:
            raise self._unsupported("set_device", "it has no module")

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        if name == "Stream":  # here because the property raised
            raise self._unsupported("Stream", self.why_not("streams"))
        if self._module is None:
            raise self._unsupported(name, "torch has no module for this device")
        try:
            attribute = getattr(self._module, name)
        except AttributeError as error:
            raise self._unsupported(name, f"torch.{self.type} has no such attribute") from error
        if not inspect.isroutine(attribute) or self.type in ("cpu", "meta"):
            return attribute

        @functools.wraps(attribute)
        def on_this_device(*args: Any, **kwargs: Any) -> Any:
            with self._on_device():
                return attribute(*args, **kwargs)

        return on_this_device

    @contextlib.contextmanager
    def _on_device(self) -> Any:
        if self._native is None:
            assert self._vendor is not None
            with self._vendor.on_device():
                yield
            return
        before = self._native.set_current_device()
        try:
            yield
        finally:
            self._native.restore_current_device(before)
