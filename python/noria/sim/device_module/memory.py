"""Device memory: amounts, peaks, the cache."""

from __future__ import annotations

from typing import Any

import torch

from noria import _sim
from noria.sim.device_module.devices import DeviceLike, device_count, device_index


def _stats(device: DeviceLike) -> dict[str, Any]:
    stats: dict[str, Any] = _sim.stats(device_index(device))
    return stats


def memory_allocated(device: DeviceLike = None) -> int:
    """Bytes in live blocks, each rounded up to 512."""
    return int(_stats(device)["allocated"])


def max_memory_allocated(device: DeviceLike = None) -> int:
    """The most that `memory_allocated` has been since the peak was reset."""
    return int(_stats(device)["peak_allocated"])


def memory_reserved(device: DeviceLike = None) -> int:
    """Bytes taken from the device: live blocks and the cache."""
    return int(_stats(device)["reserved"])


def max_memory_reserved(device: DeviceLike = None) -> int:
    """The most that `memory_reserved` has been since the peak was reset."""
    return int(_stats(device)["peak_reserved"])


def reset_peak_memory_stats(device: DeviceLike = None) -> None:
    """Sets the peaks to the current amounts."""
    _sim.reset_peak_stats(device_index(device))


def reset_max_memory_allocated(device: DeviceLike = None) -> None:
    """The older name of `reset_peak_memory_stats`."""
    reset_peak_memory_stats(device)


def reset_accumulated_memory_stats(device: DeviceLike = None) -> None:
    """Sets the counters of the device to 0."""
    _sim.reset_stats(device_index(device))


def memory_stats(device: DeviceLike = None) -> dict[str, Any]:
    """The allocator's statistics under the keys that torch.cuda uses, as far as the simulator has them."""
    return dict(torch.accelerator.memory_stats(device_index(device)))


def memory_summary(device: DeviceLike = None, abbreviated: bool = False) -> str:
    """A few lines of text about the device's memory."""
    stats = _stats(device)
    free, total = mem_get_info(device)
    return "\n".join(
        [
            f"sim:{device_index(device)}",
            f"  capacity  {total:>16,} bytes, {free:,} free",
            f"  allocated {stats['allocated']:>16,} bytes, peak {stats['peak_allocated']:,}",
            f"  reserved  {stats['reserved']:>16,} bytes, peak {stats['peak_reserved']:,}",
        ]
    )


def mem_get_info(device: DeviceLike = None) -> tuple[int, int]:
    """(free, total) bytes."""
    free, total = _sim.memory_info(device_index(device))
    return free, total


def empty_cache() -> None:
    """Gives freed memory that is kept for reuse back to the devices."""
    for index in range(device_count()):
        _sim.empty_cache(index)


def empty_host_cache() -> None:
    """Gives freed page-locked memory back to the system."""
    _sim.empty_host_cache()


def ipc_collect() -> None:
    """Does nothing: no memory is shared between processes."""
