"""Which backend serves which device type, and which device is meant when none is named."""

from __future__ import annotations

import contextlib
import contextvars
import importlib.metadata
import sys
import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import torch

from noria import _C
from noria.device.module import NEVER_ASKED, DeviceModule, module_of

if TYPE_CHECKING:
    from noria.device.backend import TorchDeviceBackend

Factory = Callable[[torch.device], "TorchDeviceBackend"]

ENTRY_POINT_GROUP = "noria.device_backends"

# Types that PyTorch knows by name and whose support may be a Python module alone.
_MODULE_ONLY = ("xpu", "hpu", "mtia", "xla")
_BUILT_IN = ("cpu", "cuda", "meta", "mps")

_lock = threading.Lock()
_factories: dict[str, Factory] = {}
_entry_points: dict[tuple[str, ...], dict[str, importlib.metadata.EntryPoint]] = {}
# The types whose factory is running: inside it, TorchDeviceBackend means the built-in one.
_making: contextvars.ContextVar[frozenset[str]] = contextvars.ContextVar("noria_making", default=frozenset())


def register_device_backend(type: str, factory: Factory) -> None:
    """Makes `factory` the source of the backends of one device type, in place of an earlier one.

    Args:
        type: the device type as torch names it, e.g. "npu"; without an index.
        factory: called with a `torch.device`, gives a `TorchDeviceBackend`. Inside it `TorchDeviceBackend(device)` is
            the built-in backend, to build on.
    """
    if not isinstance(type, str):
        raise TypeError(f"a device type is a str such as 'npu', not {type!r}")
    if not type.isidentifier():
        raise ValueError(f"a device type is a name without an index, such as 'npu', not {type!r}")
    if not callable(factory):
        raise TypeError(f"the factory of '{type}' must be callable with a torch.device, not {factory!r}")
    with _lock:
        _factories[type] = factory


def device_backends() -> list[str]:
    """The device types that have a backend: built in, usable now, registered, or announced by an installed package."""
    with _lock:
        registered = set(_factories)
    return sorted({*_BUILT_IN, *_C.usable_device_types(), *registered, *_announced(fresh=True)})


def factory_of(device_type: str) -> Factory | None:
    """The registered factory of a type; None where the built-in backend serves it, or is being built on."""
    if device_type in _making.get():
        return None
    with _lock:
        factory = _factories.get(device_type)
    if factory is None and device_type in _announced():
        factory = _announced()[device_type].load()
        if not callable(factory):
            raise TypeError(f"the entry point '{device_type}' of {ENTRY_POINT_GROUP} is {factory!r}, not a factory")
    return factory


@contextlib.contextmanager
def making(device_type: str) -> Iterator[None]:
    """Marks that the factory of a type is running."""
    token = _making.set(_making.get() | {device_type})
    try:
        yield
    finally:
        _making.reset(token)


def parse_device(device: Any) -> torch.device:
    """`torch.device(device)`, with errors that say what was given and what is there."""
    if isinstance(device, torch.device):
        return device
    try:
        return torch.device(device)
    except TypeError as error:
        raise TypeError(f"a device is a str, an int or a torch.device, not {device!r}") from error
    except (RuntimeError, ValueError) as error:
        reason = str(error).splitlines()[0]
        hint = ", and sim after noria.sim.enable()" if str(device).split(":")[0] == "sim" else ""
        raise ValueError(f"no device is called {device!r} ({reason}). Usable: {', '.join(usable())}{hint}") from error


def usable() -> list[str]:
    """The device types that can be used now, best first; cpu is the last. Nothing is kept between calls."""
    *accelerators, cpu = _C.usable_device_types()
    candidates = [*_MODULE_ONLY, torch._C._get_privateuse1_backend_name()]
    with _lock:
        candidates += sorted(_factories)
    for device_type in dict.fromkeys(candidates):
        if device_type not in accelerators and device_type not in NEVER_ASKED and _module_says_yes(device_type):
            accelerators.append(device_type)
    return [*accelerators, cpu]


def best_device() -> torch.device:
    """The best accelerator that can be used now, else cpu."""
    return torch.device(usable()[0])


def _module_says_yes(device_type: str) -> bool:
    module = module_of(device_type)
    try:
        return module is not None and DeviceModule(module, torch.device(device_type)).count() > 0
    except Exception:  # a vendor's module that cannot even say so is not usable
        return False


def _announced(fresh: bool = False) -> dict[str, importlib.metadata.EntryPoint]:
    """Entry points by device type. Looked up again when the import path changes, or on demand."""
    path = tuple(sys.path)
    with _lock:
        found = None if fresh else _entry_points.get(path)
    if found is None:
        found = {entry.name: entry for entry in importlib.metadata.entry_points(group=ENTRY_POINT_GROUP)}
        with _lock:
            _entry_points.clear()
            _entry_points[path] = found
    return found
