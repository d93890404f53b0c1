"""Finds out what a device offers through its Python module alone."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import torch

from noria import _C
from noria.device.module import DeviceModule


def probe(module: DeviceModule, wanted: set[str]) -> tuple[set[str], dict[str, str]]:
    """Tries each capability of `wanted` once.

    Returns:
        The names that are on, and for the others the reason.
    """
    on: set[str] = set()
    reasons: dict[str, str] = {}
    for name, attempt in _ATTEMPTS.items():
        if name not in wanted:
            continue
        try:
            reason = attempt(module)
        except Exception as error:  # whatever a vendor's module raises means that the thing does not work
            reason = f"{type(error).__name__}: {error}".splitlines()[0]
        if reason is None:
            on.add(name)
        else:
            reasons[name] = reason
    for name in {"float64", "int64", "bfloat16"} & wanted:
        if name in _C.missing_types(module.device.type):
            reasons[name] = f"{module.device.type} does not compute with it"
        else:
            on.add(name)
    return on, reasons


def _missing(module: DeviceModule, *names: str) -> str | None:
    absent = [name for name in names if not module.has(name)]
    return f"torch.{module.device.type} has no {' and no '.join(absent)}" if absent else None


def _streams(module: DeviceModule) -> str | None:
    reason = _missing(module, "Stream")
    if reason is None:
        with module.stream_is_current(module.new_stream(0)):
            pass
    return reason


def _events(module: DeviceModule) -> str | None:
    reason = _missing(module, "Event")
    if reason is None:
        with module.on_device():
            event = module.module.Event()
            event.record()
            event.synchronize()
    return reason


def _event_timing(module: DeviceModule) -> str | None:
    reason = _missing(module, "Event")
    if reason is None:
        with module.on_device():
            first, second = (module.module.Event(enable_timing=True) for _ in range(2))
            first.record()
            second.record()
            second.synchronize()
            first.elapsed_time(second)
    return reason


def _pinned_memory(module: DeviceModule) -> str | None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch deprecates the argument, and without it another device would answer
        sample = torch.empty(16, dtype=torch.uint8).pin_memory(module.device.type)
        if not sample.is_pinned(module.device.type):
            return "memory that it pinned is not page-locked"
    return None


def _caching_allocator(module: DeviceModule) -> str | None:
    return _missing(module, "empty_cache")


def _memory_stats(module: DeviceModule) -> str | None:
    reason = _missing(module, "max_memory_allocated")
    if reason is None:
        int(module.call("max_memory_allocated"))
    return reason


def _memory_info(module: DeviceModule) -> str | None:
    reason = _missing(module, "mem_get_info")
    if reason is None:
        _free, total = module.call("mem_get_info")
        if not total:
            reason = "it says its total memory is 0"
    return reason


def _generator(module: DeviceModule) -> str | None:
    torch.Generator(device=module.device)
    return None


_ATTEMPTS: dict[str, Callable[[DeviceModule], str | None]] = {
    "streams": _streams,
    "events": _events,
    "event_timing": _event_timing,
    "pinned_memory": _pinned_memory,
    "caching_allocator": _caching_allocator,
    "memory_stats": _memory_stats,
    "memory_info": _memory_info,
    "generator": _generator,
}
