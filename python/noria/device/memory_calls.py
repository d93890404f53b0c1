"""The memory of a backend: statistics, caches, page-locking, and errors that say it is used up."""

from __future__ import annotations

import contextlib
import logging
import warnings

import torch

from noria.device import out_of_memory
from noria.device.base import BackendBase
from noria.errors import UnsupportedOperation

_log = logging.getLogger("noria")


class MemoryCalls(BackendBase):
    """Statistics, caches, page-locking and out of memory."""

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

    @property
    def OutOfMemoryError(self) -> type[BaseException]:
        """The class of the device's out-of-memory errors. Some devices raise a RuntimeError: see `is_out_of_memory`."""
        return out_of_memory.error_class(self._module)

    def is_out_of_memory(self, exc: BaseException) -> bool:
        """True when `exc`, or what it was raised `from`, says that this device's memory is used up."""
        if not isinstance(exc, BaseException):
            raise TypeError(f"is_out_of_memory takes an exception, not {exc!r}")
        return out_of_memory.is_out_of_memory(exc, self.type, self.OutOfMemoryError)
