"""noria runs PyTorch models larger than device memory: weights stream in just before they are used."""

from __future__ import annotations

import importlib as _importlib
from typing import TYPE_CHECKING as _TYPE_CHECKING
from typing import Any as _Any

import torch as _torch

from noria._load import load_extension as _load_extension

_load_extension(_torch.__version__)

from noria._C import __version__ as __version__  # noqa: E402
from noria.errors import (  # noqa: E402
    BudgetError,
    Error,
    EvictedWeightError,
    IntegrityError,
    PlanError,
    StorageError,
    UnsupportedOperation,
)

if _TYPE_CHECKING:
    from noria import conformance
    from noria.device import (
        TorchDeviceBackend,
        device_backends,
        empty_device_cache,
        get_device,
        register_device_backend,
        synchronize,
    )
    from noria.errors import is_evicted_error
    from noria.group_offloading import apply_group_offloading, remove_group_offloading
    from noria.loading import load
    from noria.offloading import Offload, Status, offload

# Imported at their first use, so that `import noria` stays light: name to module, "" for a module itself.
_LAZY = {
    "Offload": "noria.offloading",
    "Status": "noria.offloading",
    "TorchDeviceBackend": "noria.device",
    "apply_group_offloading": "noria.group_offloading",
    "conformance": "",
    "device_backends": "noria.device",
    "empty_device_cache": "noria.device",
    "get_device": "noria.device",
    "is_evicted_error": "noria.errors",
    "load": "noria.loading",
    "offload": "noria.offloading",
    "register_device_backend": "noria.device",
    "remove_group_offloading": "noria.group_offloading",
    "synchronize": "noria.device",
}

__all__ = [
    "BudgetError",
    "Error",
    "EvictedWeightError",
    "IntegrityError",
    "Offload",
    "PlanError",
    "Status",
    "StorageError",
    "TorchDeviceBackend",
    "UnsupportedOperation",
    "__version__",
    "apply_group_offloading",
    "conformance",
    "device_backends",
    "empty_device_cache",
    "get_device",
    "is_evicted_error",
    "load",
    "offload",
    "register_device_backend",
    "remove_group_offloading",
    "synchronize",
]


def __getattr__(name: str) -> _Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'noria' has no attribute '{name}'")
    module = _importlib.import_module(_LAZY[name] or f"noria.{name}")
    value = getattr(module, name) if _LAZY[name] else module
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_LAZY})
