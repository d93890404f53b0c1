"""Python stand-ins for vendors' device modules that lack what real ones lack.

Each is a class whose attributes are the module's functions. `install(name, kind)` makes one `torch.<name>`: for names
that PyTorch knows (xpu, hpu, mtia) at any time, for others (npu, mlu, neuron) once in a fresh process.
"""

from __future__ import annotations

from typing import Any

import torch

KNOWN = {"xpu", "hpu", "mtia", "xla"}


def install(name: str, kind: Any) -> Any:
    """Makes a stand-in of this class `torch.<name>`."""
    if name not in KNOWN:
        torch.utils.rename_privateuse1_backend(name)
    module = kind(name)
    setattr(torch, name, module)
    return module


class Stream:
    def __init__(self, device: Any = None, priority: int = 0, *, module: Any = None) -> None:
        self.module = module
        self.index = module.current if device is None else torch.device(device).index
        self.priority = priority
        self.waited = 0

    @property
    def device(self) -> torch.device:
        return torch.device(self.module.name, self.index)

    def synchronize(self) -> None:
        self.waited += 1


class Event:
    def __init__(self, enable_timing: bool = False) -> None:
        self.timing = enable_timing
        self.recorded = False

    def record(self, stream: Any = None) -> None:
        self.recorded = True

    def query(self) -> bool:
        return True

    def synchronize(self) -> None:
        pass

    def elapsed_time(self, other: Event) -> float:
        return 0.5


class Devices:
    """Two devices and nothing else."""

    def __init__(self, name: str, count: int = 2) -> None:
        self.name = name
        self.count = count
        self.current = 0
        self.calls: list[tuple[Any, ...]] = []

    def is_available(self) -> bool:
        return self.count > 0

    def device_count(self) -> int:
        return self.count

    def current_device(self) -> int:
        return self.current

    def set_device(self, index: int) -> None:
        self.current = index


class Streams(Devices):
    """Streams that are no context managers, current per device; no default_stream, as on xpu (torch-xpu-ops#2793)."""

    Event = Event

    def __init__(self, name: str, count: int = 2) -> None:
        super().__init__(name, count)
        self.streams = {index: Stream(f"{name}:{index}", module=self) for index in range(count)}

    def Stream(self, device: Any = None, priority: int = 0) -> Stream:
        return Stream(device, priority, module=self)

    def current_stream(self, device: Any = None) -> Stream:
        return self.streams[self.current if device is None else device]

    def set_stream(self, stream: Stream) -> None:
        self.streams[stream.index] = stream

    def synchronize(self, device: Any = None) -> None:
        self.calls.append(("synchronize", self.current if device is None else device))


class Full(Streams):
    """What torch.npu and torch.mlu offer: statistics by index, seeds and cache of the current device."""

    class OutOfMemoryError(RuntimeError):
        pass

    def __init__(self, name: str, count: int = 2) -> None:
        super().__init__(name, count)
        self.peaks = {index: 1000 + index for index in range(count)}
        self.seeds = dict.fromkeys(range(count), 0)

    def default_stream(self, device: Any = None) -> Stream:
        return Stream(f"{self.name}:{self.current if device is None else device}", module=self)

    def empty_cache(self) -> None:
        self.calls.append(("empty_cache", self.current))

    def memory_allocated(self, device: Any = None) -> int:
        return 100 + (self.current if device is None else device)

    def max_memory_allocated(self, device: Any = None) -> int:
        return self.peaks[self.current if device is None else device]

    def reset_peak_memory_stats(self, device: Any = None) -> None:
        self.peaks[self.current if device is None else device] = 0

    def mem_get_info(self, device: Any = None) -> tuple[int, int]:
        return 10 * (1 + (self.current if device is None else device)), 100

    def manual_seed(self, seed: int) -> None:
        self.seeds[self.current] = seed

    def get_rng_state(self, device: Any = None) -> torch.Tensor:
        return torch.tensor([self.seeds[self.current if device is None else device]])

    def set_rng_state(self, state: torch.Tensor) -> None:
        self.seeds[self.current] = int(state[0])

    def memory_reserved(self) -> tuple[str, int]:
        return "reserved", self.current


class NoDefaultStream(Full):
    default_stream = None  # type: ignore[assignment]


class NoStreams(Full):
    Stream = None  # type: ignore[assignment]
    Event = None  # type: ignore[assignment]


class NoAllocator(Streams):
    """neuron: streams perhaps, no function about memory at all."""


class AssertingMemory(Full):
    """An allocator that is not of PyTorch's kind (pytorch#186430): its memory functions trip an internal assertion."""

    def _assert(self, *_: Any) -> Any:
        raise RuntimeError("INTERNAL ASSERT FAILED: allocator is not a DeviceAllocator")

    empty_cache = memory_allocated = max_memory_allocated = reset_peak_memory_stats = mem_get_info = _assert


class NothingAtAll(Devices):
    """One device that can only be counted."""

    def __init__(self, name: str, count: int = 1) -> None:
        super().__init__(name, count)

    set_device = current_device = None  # type: ignore[assignment]


ALL = {
    "full": Full,
    "no_default_stream": NoDefaultStream,
    "no_streams": NoStreams,
    "streams_without_enter": Streams,
    "no_allocator_functions": NoAllocator,
    "memory_functions_that_assert": AssertingMemory,
    "nothing_but_a_count": NothingAtAll,
}
