"""What a device offers, as found out once per device."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class Capabilities:
    """What a device offers. `TorchDeviceBackend.why_not(name)` says why one is off.

    Attributes:
        streams: new streams differ from the default one and run beside it.
        events: events order streams, and the host can wait for them.
        event_timing: two events give the time between them.
        async_copies: a copy from pinned memory returns before it is done.
        pinned_memory: page-locked host memory that the device recognises as such.
        host_register: existing host memory can be page-locked in place.
        caching_allocator: freed device memory is kept for reuse, and `empty_cache` gives it back.
        memory_stats: allocated and peak bytes of this device index.
        memory_info: free and total bytes of this device index.
        unified_memory: host and device are the same memory.
        generator: random numbers are drawn on the device.
        float64: the device computes with it; the same for int64 and bfloat16.
    """

    streams: bool = False
    events: bool = False
    event_timing: bool = False
    async_copies: bool = False
    pinned_memory: bool = False
    host_register: bool = False
    caching_allocator: bool = False
    memory_stats: bool = False
    memory_info: bool = False
    unified_memory: bool = False
    generator: bool = False
    float64: bool = False
    int64: bool = False
    bfloat16: bool = False


NAMES = tuple(field.name for field in dataclasses.fields(Capabilities))
