# Written by `make stubs` from the extension; do not edit.
"""
The simulated accelerator; the public names are in noria.sim
"""

from __future__ import annotations

import collections.abc
import typing

import torch

__all__: list[str] = [
    "advance_host",
    "clear_error",
    "clear_injections",
    "clear_reports",
    "clear_timeline",
    "clock",
    "current_device",
    "current_stream_id",
    "default_generator",
    "device_count",
    "empty_cache",
    "empty_host_cache",
    "enable",
    "enabled",
    "exchange_device",
    "findings",
    "forget",
    "host_clock",
    "host_stats",
    "inject",
    "memory_info",
    "profile_json",
    "profile_name",
    "profile_names",
    "profiles_json",
    "races",
    "record_timeline",
    "reserve",
    "reset_clock",
    "reset_peak_stats",
    "reset_stats",
    "set_checker",
    "set_stream",
    "stats",
    "synchronize",
    "timeline",
]

def advance_host(seconds: typing.SupportsFloat | typing.SupportsIndex) -> None: ...
def clear_error(device: typing.SupportsInt | typing.SupportsIndex) -> None: ...
def clear_injections() -> None: ...
def clear_reports() -> None: ...
def clear_timeline() -> None: ...
def clock(device: typing.SupportsInt | typing.SupportsIndex) -> float: ...
def current_device() -> int: ...
def current_stream_id(device: typing.SupportsInt | typing.SupportsIndex) -> int: ...
def default_generator(device: typing.SupportsInt | typing.SupportsIndex) -> torch.Generator: ...
def device_count() -> int: ...
def empty_cache(device: typing.SupportsInt | typing.SupportsIndex) -> None: ...
def empty_host_cache() -> None: ...
def enable(
    *,
    profile: str,
    profile_json: str,
    overrides_json: str,
    devices: typing.SupportsInt | typing.SupportsIndex,
    memory_bytes: typing.SupportsInt | typing.SupportsIndex,
    dry: bool,
    checker: str,
    streams: bool,
    pinned_memory: bool,
    caching_allocator: bool,
    copy_engines: typing.SupportsInt | typing.SupportsIndex,
) -> None: ...
def enabled() -> bool: ...
def exchange_device(index: typing.SupportsInt | typing.SupportsIndex) -> int: ...
def findings() -> list[dict[str, typing.Any]]: ...
def forget() -> None:
    """
    Takes back enable(): there is no device until the next one.
    """

def host_clock() -> float: ...
def host_stats() -> dict[str, typing.Any]: ...
def inject(
    kind: str,
    *,
    after: typing.SupportsInt | typing.SupportsIndex,
    count: typing.SupportsInt | typing.SupportsIndex,
    device: typing.SupportsInt | typing.SupportsIndex,
    above: typing.SupportsInt | typing.SupportsIndex,
    factor: typing.SupportsFloat | typing.SupportsIndex,
    extra_seconds: typing.SupportsFloat | typing.SupportsIndex,
    sticky: bool,
) -> None: ...
def memory_info(device: typing.SupportsInt | typing.SupportsIndex) -> tuple[int, int]: ...
def profile_json(device: typing.SupportsInt | typing.SupportsIndex) -> str: ...
def profile_name(device: typing.SupportsInt | typing.SupportsIndex) -> str: ...
def profile_names() -> list[str]: ...
def profiles_json() -> str: ...
def races() -> list[dict[str, typing.Any]]: ...
def record_timeline(on: bool) -> None: ...
def reserve(
    devices: typing.SupportsInt | typing.SupportsIndex, run_backward: collections.abc.Callable[[], None]
) -> None: ...
def reset_clock() -> None: ...
def reset_peak_stats(device: typing.SupportsInt | typing.SupportsIndex) -> None: ...
def reset_stats(device: typing.SupportsInt | typing.SupportsIndex) -> None: ...
def set_checker(mode: str) -> None: ...
def set_stream(
    device: typing.SupportsInt | typing.SupportsIndex, id: typing.SupportsInt | typing.SupportsIndex
) -> None: ...
def stats(device: typing.SupportsInt | typing.SupportsIndex) -> dict[str, typing.Any]: ...
def synchronize(device: typing.SupportsInt | typing.SupportsIndex) -> None: ...
def timeline() -> list[dict[str, typing.Any]]: ...
