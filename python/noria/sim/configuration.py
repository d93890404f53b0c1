"""Switching the simulated accelerator on."""

from __future__ import annotations

import atexit
import contextlib
import importlib
import json
import sys
import time
from collections.abc import Mapping
from types import NoneType
from typing import Any

import torch
from torch.utils import backend_registration

from noria._argument_types import check_types
from noria.errors import Error
from noria.sim.simulator import Simulator

_DEVICE = "sim"
# The largest number of devices that the process's autograd engine serves; see _prove_backward. It counts once.
_proven_devices = 0
_reserved_devices = 0
_dry_run = False


def _extension() -> Any:
    return importlib.import_module("noria._sim")


def profiles() -> dict[str, dict[str, Any]]:
    """The machines that can be simulated, by name: rates, latencies and capacity, and the source of each figure.

    Works without enabling the simulator, and enables nothing.
    """
    figures: dict[str, dict[str, Any]] = json.loads(_extension().profiles_json())
    return figures


def enable(
    profile: str | Mapping[str, Any] = "rtx4090",
    *,
    devices: int = 1,
    memory: int | str | None = None,
    dry: bool = False,
    checker: str = "raise",
    streams: bool = True,
    pinned_memory: bool = True,
    caching_allocator: bool = True,
    copy_engines: int = 2,
    overrides: Mapping[str, Any] | None = None,
    force: bool = False,
) -> Simulator:
    """Makes `torch.device("sim")` exist in this process, or configures it anew.

    Enable it at the start of the process: PyTorch's autograd engine counts devices at the first backward.

    Args:
        profile: the machine: a name from `profiles()`, or all figures of one of your own.
        devices: how many of them.
        memory: bytes of device memory in place of the profile's capacity, as an int or "12GiB".
        dry: compute nothing and touch no memory: shapes, accounting, order and time only.
        checker: what happens when two accesses are unordered: "raise", "record" or "off".
        streams: whether the device has streams besides the default one.
        pinned_memory: whether host memory can be page-locked.
        caching_allocator: whether freed device memory is kept for reuse.
        copy_engines: 2: one per direction; 1: one that both share.
        overrides: figures of the profile to replace.
        force: enable beside a usable accelerator, or after a backward, all the same.

    Raises (and nothing has changed):
        noria.Error: a simulated tensor is alive, another PrivateUse1 backend is loaded, another accelerator is usable,
            or the process has run a backward already.
        ValueError: an option that makes no sense.
    """
    global _proven_devices, _dry_run
    check_types(devices=(devices, int), copy_engines=(copy_engines, int), checker=(checker, str))
    check_types(profile=(profile, (str, Mapping)), overrides=(overrides, (Mapping, NoneType)))
    check_types(memory=(memory, (int, str, NoneType)))
    if devices < 1:
        raise ValueError(f"devices must be at least 1, not {devices}")
    if copy_engines not in (1, 2):
        raise ValueError(f"copy_engines must be 1 or 2, not {copy_engines}")
    extension = _extension()
    first_time = not extension.enabled()
    if first_time:
        _refuse_another_backend()
        if not force:
            _refuse_beside_an_accelerator()
    elif devices > _proven_devices and not force:
        raise Error(_too_many(devices))
    options = {
        "profile": profile if isinstance(profile, str) else str(profile.get("name", "custom")),
        "profile_json": ""
        if isinstance(profile, str)
        else json.dumps({k: v for k, v in profile.items() if k != "name"}),
        "overrides_json": json.dumps(dict(overrides)) if overrides else "",
        "devices": devices,
        "memory_bytes": _memory_bytes(memory),
        "dry": dry,
        "checker": checker,
        "streams": streams,
        "pinned_memory": pinned_memory,
        "caching_allocator": caching_allocator,
        "copy_engines": copy_engines,
    }
    extension.enable(**options)
    if "torch.sim" not in sys.modules:
        _install_device_module()
    if devices > _proven_devices and not force:
        try:
            _prove_backward(devices - 1)
        except RuntimeError as error:
            extension.forget()
            raise Error(_too_many(devices)) from error
        _proven_devices = devices
        if _reserved_devices > devices:
            extension.enable(**{**options, "devices": _reserved_devices})
            with contextlib.suppress(RuntimeError):
                _prove_backward(_reserved_devices - 1)
                _proven_devices = _reserved_devices
        extension.enable(**options)  # Afresh: the probe has moved the clocks.
    _dry_run = dry
    return Simulator(extension)


def is_dry() -> bool:
    """Whether the simulator is enabled, and computes nothing."""
    return _dry_run


def reserve(devices: int = 1) -> None:
    """Prepares this process for `enable()` after a backward, with up to `devices` devices.

    Call it before the first backward: PyTorch's autograd engine makes its queues then, and none later. Unlike
    `enable()` it changes nothing that a program could see, so a library that may simulate later can call it early.
    """
    global _reserved_devices
    check_types(devices=(devices, int))
    _reserved_devices = max(_reserved_devices, devices)
    _extension().reserve(devices, lambda: torch.autograd.backward(torch.ones(1, requires_grad=True).sum()))


def _too_many(devices: int) -> str:
    served = f"serves {_proven_devices}" if _proven_devices else "has run before the simulator was enabled"
    return (
        f"{devices} simulated device(s) cannot run a backward in this process: PyTorch's autograd engine counts "
        f"devices at its first use, and here it {served}. Enable the simulator at the start of the process with all "
        "the devices that you will want, or call noria.sim.reserve() there; pass force=True if those run no backward"
    )


def _memory_bytes(memory: int | str | None) -> int:
    if memory is None:
        return 0
    if isinstance(memory, int):
        return memory
    from noria import _C

    if _C.is_share(memory):
        raise ValueError(f"memory must be an amount such as '12GiB', not the share '{memory}'")
    amount: int = _C.parse_byte_amount(memory, 0)
    return amount


def _refuse_another_backend() -> None:
    name = torch._C._get_privateuse1_backend_name()
    if name not in ("privateuseone", _DEVICE):
        raise Error(
            f"this process already has the PrivateUse1 backend '{name}', and PyTorch has room for one. Start Python "
            "with TORCH_DEVICE_BACKEND_AUTOLOAD=0 so that it is not loaded, then enable the simulator"
        )


def _refuse_beside_an_accelerator() -> None:
    for kind, hide in (("cuda", "CUDA_VISIBLE_DEVICES="), ("xpu", "ZE_AFFINITY_MASK="), ("mps", None)):
        module = getattr(torch, kind, None)
        if module is not None and module.is_available():
            remedy = f"Hide it from this process ({hide}), or pass" if hide else "Pass"
            raise Error(
                f"this process can use {kind}, and a PrivateUse1 backend takes over its stream synchronisation in "
                f"backward. {remedy} force=True if this process runs no backward on {kind}"
            )


def _install_device_module() -> None:
    module = importlib.import_module("noria.sim.device_module")
    backend_registration.rename_privateuse1_backend(_DEVICE)
    torch._register_device_module(_DEVICE, module)
    # `import torch.sim` and pickles that name it find the module too.
    sys.modules["torch.sim"] = module
    backend_registration.generate_methods_for_privateuse1_backend(for_storage=True)
    atexit.register(_let_autograd_threads_finish)


def _let_autograd_threads_finish() -> None:
    """Gives the GIL away for a moment.

    After a backward on an accelerator an autograd thread still drops references to Python objects. If the interpreter
    ends before it gets the GIL, Python ends that thread instead and the process aborts. CUDA has this too; it shows in
    programs as short as those that a simulator runs.
    """
    time.sleep(0.01)


def _prove_backward(index: int) -> None:
    """Runs a tiny backward: the autograd engine makes a queue per device at its first use and none later."""
    # Whatever mode the caller is in.
    with torch.inference_mode(False), torch.enable_grad():
        x = torch.ones(1, device=f"{_DEVICE}:{index}", requires_grad=True)
        try:
            torch.autograd.backward(x * 2.0)
        finally:
            x.grad = None
            del x
