"""`TorchDeviceBackend`: every call to one device, whichever vendor made it.

What PyTorch's C++ side can do for the device is done there (`noria._C.DeviceBackend`). Where only the vendor's Python
module has a call, the module is asked, under the same rules: this index, and the caller's device and stream as before.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import inspect
import logging
import warnings
from collections.abc import Callable
from typing import Any

import torch

from noria import _C
from noria.device import module_probe, out_of_memory, registry
from noria.device.capabilities import NAMES, Capabilities
from noria.device.module import NEVER_ASKED, DeviceModule, module_of
from noria.device.streams import SynchronousEvent, SynchronousStream, native_stream_is_current
from noria.errors import UnsupportedOperation

# Inside the class `type` is the device type.
_ExceptionClass = type[BaseException]

_log = logging.getLogger("noria")
_said: set[tuple[str, str]] = set()
# What a device's Python module offers, by device; with the module that was asked, since plug-ins may replace theirs.
_probed: dict[torch.device, tuple[Any, set[str], dict[str, str]]] = {}


class _ThroughRegistry(type):
    """Calling `TorchDeviceBackend` gives what is registered for the device type; subclasses are made as usual."""

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        if "_made_through_registry" not in cls.__dict__:
            return super().__call__(*args, **kwargs)
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


class TorchDeviceBackend(metaclass=_ThroughRegistry):
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
        elif type(self) is not TorchDeviceBackend:
            return wanted  # a vendor's own class may know what nobody here does
        raise ValueError(refusal)

    # ---- what it is

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
        return self._native is not None and bool(self._native.capabilities()[capability])

    def _by_module(self, capability: str) -> bool:
        return self._vendor is not None and not self._by_native(capability) and getattr(self.capabilities, capability)

    def _unsupported(self, operation: str, reason: str) -> UnsupportedOperation:
        return UnsupportedOperation(f"{self._device} does not support {operation}: {reason}")

    def _say_once(self, operation: str) -> bool:
        key = (str(self._device), operation)
        if key in _said:
            return False
        _said.add(key)
        return True

    # ---- devices

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
                TorchDeviceBackend(other).set_device()
                return
        if self._native is not None:
            self._native.set_current_device()
        elif self._vendor is not None:
            self._vendor.set_device(self._vendor.index)
        else:
            raise self._unsupported("set_device", "it has no module")

    # ---- streams and events

    @property
    def Stream(self) -> Callable[..., Any]:
        """Makes a stream of this device: `Stream(*, priority=0)`. Absent where the device has one queue only."""
        if self.type != "cpu" and not self.capabilities.streams:
            raise self._unsupported("Stream", self.why_not("streams"))
        return self._new_stream

    def _new_stream(self, *, priority: int = 0) -> Any:
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

    # ---- memory

    def empty_cache(self) -> None:
        """Gives freed memory that the allocator keeps back to the device. Nothing to do without a caching allocator."""
        if self._by_native("caching_allocator"):
            assert self._native is not None
            self._native.empty_cache()
        elif self._by_module("caching_allocator"):
            assert self._vendor is not None
            try:
                self._vendor.call_here("empty_cache")
            except (RuntimeError, AssertionError) as error:
                # pytorch#186430: an allocator that is not of PyTorch's kind makes the call assert.
                if self._say_once("empty_cache"):
                    warnings.warn(f"empty_cache of {self._device} failed: {error}", RuntimeWarning, stacklevel=2)
        elif self._say_once("empty_cache"):
            _log.debug("empty_cache of %s does nothing: %s", self._device, self.why_not("caching_allocator"))

    def memory_allocated(self) -> int:
        """Bytes in use on this device index; on cpu what the process holds in memory. 0, with a warning, if unknown."""
        return self._statistic("memory_allocated")

    def max_memory_allocated(self) -> int:
        """Most bytes in use since the last reset; on cpu of the process. 0, with a warning, if unknown."""
        return self._statistic("max_memory_allocated")

    def _statistic(self, name: str) -> int:
        if self._native is not None:
            with contextlib.suppress(UnsupportedOperation):
                return int(getattr(self._native, name)())
        if self._by_module("memory_stats"):
            assert self._vendor is not None
            if self._vendor.has(name):
                return int(self._vendor.call(name))
        self._warn_once(name, "returns 0")
        return 0

    def reset_peak_memory_stats(self) -> None:
        """Starts `max_memory_allocated` again from what is in use. Does nothing, with a warning, if unknown."""
        if self._native is not None:
            with contextlib.suppress(UnsupportedOperation):
                self._native.reset_peak_memory_stats()
                return
        if self._by_module("memory_stats"):
            assert self._vendor is not None
            if self._vendor.has("reset_peak_memory_stats"):
                self._vendor.call("reset_peak_memory_stats")
                return
        self._warn_once("reset_peak_memory_stats", "does nothing")

    def _warn_once(self, operation: str, consequence: str) -> None:
        if self._say_once(operation):
            warnings.warn(
                f"{operation} of {self._device} {consequence}: no memory statistics ({self.why_not('memory_stats')})",
                RuntimeWarning,
                stacklevel=3,
            )

    def mem_get_info(self) -> tuple[int, int]:
        """Free and total bytes of this device index; on cpu what the machine and every control group leave."""
        if self._by_module("memory_info"):
            assert self._vendor is not None
            free, total = self._vendor.call("mem_get_info")
            return int(free), int(total)
        if self._native is None:
            raise self._unsupported("mem_get_info", self.why_not("memory_info"))
        return self._native.mem_get_info()

    def pin_memory(self, tensor: torch.Tensor) -> torch.Tensor:
        """A copy of a cpu tensor in page-locked memory; the tensor itself if it is there already."""
        self._check_host_tensor(tensor)
        if not self.capabilities.pinned_memory:
            raise self._unsupported("pin_memory", self.why_not("pinned_memory"))
        if self.is_pinned(tensor):
            return tensor
        if self._by_native("pinned_memory"):
            assert self._native is not None
            return self._native.pin(tensor)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch deprecates the argument; without it another device would answer
            return tensor.pin_memory(self.type)

    def is_pinned(self, tensor: torch.Tensor) -> bool:
        """True when this device recognises the tensor's memory as page-locked."""
        if not isinstance(tensor, torch.Tensor):
            raise TypeError(f"is_pinned takes a tensor, not {tensor!r}")
        if tensor.device.type != "cpu" or not self.capabilities.pinned_memory:
            return False
        if self._by_native("pinned_memory"):
            assert self._native is not None
            return self._native.is_pinned(tensor)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return tensor.is_pinned(self.type)

    @staticmethod
    def _check_host_tensor(tensor: torch.Tensor) -> None:
        if not isinstance(tensor, torch.Tensor):
            raise TypeError(f"pin_memory takes a tensor, not {tensor!r}")
        if tensor.device.type != "cpu":
            raise ValueError(f"only memory of the cpu can be pinned; the tensor is on {tensor.device}")

    # ---- random numbers

    def manual_seed(self, seed: int) -> None:
        """Seeds the generator of this device index; where it has none, every generator (`torch.manual_seed`)."""
        seed = int(seed)
        if self._by_native("generator"):
            assert self._native is not None
            self._native.manual_seed(seed % 2**64)
        elif self._vendor is not None and self._vendor.has("manual_seed"):
            self._vendor.call_here("manual_seed", seed)
        else:
            torch.manual_seed(seed)

    def Generator(self) -> torch.Generator:
        """A new generator that draws on this device."""
        try:
            return torch.Generator(device=self._device)
        except RuntimeError as error:
            raise self._unsupported("Generator", str(error).splitlines()[0]) from error

    def get_rng_state(self) -> torch.Tensor:
        """The state of the generator of this device index, a byte tensor on cpu."""
        if self._by_native("generator"):
            assert self._native is not None
            return self._native.rng_state()
        if self._vendor is not None and self._vendor.has("get_rng_state"):
            state: torch.Tensor = self._vendor.call("get_rng_state")
            return state
        raise self._unsupported("get_rng_state", self.why_not("generator"))

    def set_rng_state(self, state: torch.Tensor) -> None:
        """Puts back a state that `get_rng_state` gave."""
        if not isinstance(state, torch.Tensor):
            raise TypeError(f"a generator's state is a byte tensor, not {state!r}")
        if self._by_native("generator"):
            assert self._native is not None
            self._native.set_rng_state(state)
        elif self._vendor is not None and self._vendor.has("set_rng_state"):
            self._vendor.call_here("set_rng_state", state)
        else:
            raise self._unsupported("set_rng_state", self.why_not("generator"))

    # ---- errors

    @property
    def OutOfMemoryError(self) -> _ExceptionClass:
        """The class of the device's out-of-memory errors. Some devices raise a RuntimeError: see `is_out_of_memory`."""
        return out_of_memory.error_class(self._module)

    def is_out_of_memory(self, exc: BaseException) -> bool:
        """True when `exc`, or what it was raised `from`, says that this device's memory is used up."""
        if not isinstance(exc, BaseException):
            raise TypeError(f"is_out_of_memory takes an exception, not {exc!r}")
        return out_of_memory.is_out_of_memory(exc, self.type, self.OutOfMemoryError)

    # ---- everything else is the module's

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
