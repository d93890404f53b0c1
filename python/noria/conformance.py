"""The contract of a device backend, run against a real device: `noria.conformance.check("npu:0")`."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable
from typing import Any

import torch

from noria.device import TorchDeviceBackend
from noria.device.capabilities import NAMES
from noria.errors import UnsupportedOperation

__all__ = ["Finding", "check"]


@dataclasses.dataclass(frozen=True)
class Finding:
    """What one check found.

    Attributes:
        check: its name.
        passed: whether the device does what is expected.
        expected: what is expected, one sentence.
        found: what the device did.
        remedy: what the vendor of the device can do, "" when passed.
    """

    check: str
    passed: bool
    expected: str
    found: str
    remedy: str


class _Unmet(Exception):
    """A check's expectation is not met; the text is what was found."""


@dataclasses.dataclass(frozen=True)
class _Check:
    name: str
    expected: str
    remedy: str
    body: Callable[[TorchDeviceBackend], str]


_CHECKS: list[_Check] = []


def _contract(expected: str, remedy: str) -> Callable[[Callable[[TorchDeviceBackend], str]], Callable[..., str]]:
    def add(body: Callable[[TorchDeviceBackend], str]) -> Callable[..., str]:
        _CHECKS.append(_Check(body.__name__.lstrip("_"), expected, remedy, body))
        return body

    return add


def check(device: Any = None) -> list[Finding]:
    """Runs the contract against a device. It allocates a few MiB there and leaves no state behind.

    Args:
        device: anything `TorchDeviceBackend` accepts, or a backend.

    Returns:
        One finding per check, in a fixed order. A check that fails, whatever it raises, is a finding, not an exception.

    Raises:
        TypeError, ValueError: the device cannot be used at all.
    """
    backend = device if isinstance(device, TorchDeviceBackend) else TorchDeviceBackend(device)
    return [_run(item, backend) for item in _CHECKS]


def _run(item: _Check, backend: TorchDeviceBackend) -> Finding:
    try:
        return Finding(item.name, True, item.expected, item.body(backend), "")
    except _Unmet as unmet:
        found = str(unmet)
    except Exception as error:  # the point of a finding
        found = f"{type(error).__name__}: {error}".splitlines()[0]
    return Finding(item.name, False, item.expected, found, item.remedy)


def _meet(condition: bool, found: str) -> None:
    if not condition:
        raise _Unmet(found)


def _refused(call: Callable[[], Any], what: str) -> str:
    try:
        answer = call()
    except UnsupportedOperation as error:
        return f"refused: {error}"
    raise _Unmet(f"{what} gave {answer!r} although the capability is off")


def _others(backend: TorchDeviceBackend) -> int | None:
    """Another index of the same type, None where there is one device."""
    return next((index for index in range(backend.device_count()) if index != (backend.index or 0)), None)


@contextlib.contextmanager
def _elsewhere(backend: TorchDeviceBackend) -> Any:
    """Another device is current inside the block, where there is one; gives the current index."""
    other = _others(backend)
    before = backend.current_device()
    if other is not None:
        backend.set_device(other)
    try:
        yield backend.current_device()
    finally:
        backend.set_device(before)


@_contract(
    "the device is available and its index is within the number of devices",
    "deviceCount() of the guard, device_count() of the module: what can be used now, and never an exception",
)
def _device_is_there(backend: TorchDeviceBackend) -> str:
    count, index = backend.device_count(), backend.index or 0
    _meet(backend.is_available(), "is_available() says no")
    _meet(0 <= index < count, f"index {index} of {count}")
    return f"index {index} of {count}"


@_contract(
    "each capability that is off has a reason, and the record cannot be changed",
    "report it to noria: the probe lost the reason",
)
def _capabilities_have_reasons(backend: TorchDeviceBackend) -> str:
    silent = [name for name in NAMES if not getattr(backend.capabilities, name) and not backend.why_not(name)]
    _meet(not silent, f"no reason for {', '.join(silent)}")
    with contextlib.suppress(dataclasses.FrozenInstanceError):
        backend.capabilities.streams = True  # type: ignore[misc]
        raise _Unmet("the record can be changed")
    return "on: " + ", ".join(name for name in NAMES if getattr(backend.capabilities, name))


@_contract(
    "no call changes the caller's current device",
    "set the device inside the call and put the caller's back, exceptions included",
)
def _current_device_is_kept(backend: TorchDeviceBackend) -> str:
    with _elsewhere(backend) as here:
        backend.current_stream()
        backend.stream_or_none()
        backend.memory_allocated()
        backend.synchronize()
        backend.empty_cache()
        now = backend.current_device()
        _meet(now == here, f"device {here} was current before the calls, {now} after")
    return f"device {here} was current before and after calls to index {backend.index or 0}"


@_contract(
    "a stream is of the backend's device whatever the current one is, or there is none and Stream is absent",
    "getNewStream(device) of the guard, Stream(device=) of the module: use the device that is given",
)
def _streams_belong_to_the_device(backend: TorchDeviceBackend) -> str:
    if not backend.capabilities.streams:
        _meet(backend.stream_or_none() is None, "stream_or_none() gives a stream")
        if backend.type == "cpu":
            return "synchronous streams"
        _meet(not hasattr(backend, "Stream"), "Stream is there")
        return _refused(lambda: backend.Stream(), "Stream()")
    with _elsewhere(backend):
        stream = backend.Stream()
    device = getattr(stream, "device", backend.device)
    _meet((device.index or 0) == (backend.index or 0), f"a stream of {device}")
    _meet(stream != backend.default_stream(), "a new stream is the default stream")
    return f"a stream of {device}"


@_contract(
    "stream(s) makes s and its device current inside the block and puts both back, also after an exception",
    "exchangeStream of the guard, or stream() or set_stream() of the module, per thread and device",
)
def _stream_context_restores(backend: TorchDeviceBackend) -> str:
    stream = backend.stream_or_none() if backend.type != "cpu" else backend.Stream()
    with _elsewhere(backend) as here:
        before = backend.current_stream()
        with contextlib.suppress(ZeroDivisionError), backend.stream(stream):
            if stream is not None:
                _meet(backend.current_stream() == stream, "inside the block another stream is current")
                _meet(backend.current_device() == (backend.index or 0), "inside the block another device is current")
            raise ZeroDivisionError
        _meet(backend.current_stream() == before, "after the block another stream is current")
        _meet(backend.current_device() == here, "after the block another device is current")
    with backend.stream(None):
        pass
    return "restored" if stream is not None else "one queue: the context changes nothing"


@_contract(
    "an event that was not recorded is done; a recorded one becomes done; or there are none and Event() refuses",
    "record, block, queryEvent and synchronizeEvent of the guard, Event of the module",
)
def _events_complete(backend: TorchDeviceBackend) -> str:
    if not backend.capabilities.events:
        return _refused(backend.Event, "Event()")
    event = backend.Event()
    _meet(bool(event.query()), "an event that was not recorded is not done")
    event.synchronize()
    event.record()
    event.synchronize()
    _meet(bool(event.query()), "an event that was waited for is not done")
    return "recorded, waited for, done"


@_contract(
    "the time between two events is not negative, or timing events are refused",
    "elapsedTime of the guard, elapsed_time of the module's events, in milliseconds",
)
def _events_tell_time(backend: TorchDeviceBackend) -> str:
    if not backend.capabilities.event_timing:
        return _refused(lambda: backend.Event(enable_timing=True), "Event(enable_timing=True)")
    first, second = backend.Event(enable_timing=True), backend.Event(enable_timing=True)
    first.record()
    second.record()
    second.synchronize()
    milliseconds = first.elapsed_time(second)
    _meet(milliseconds >= 0, f"{milliseconds} ms")
    return f"{milliseconds} ms"


@_contract("synchronize() returns", "synchronizeDevice of the guard, synchronize() of the module")
def _synchronize_returns(backend: TorchDeviceBackend) -> str:
    backend.synchronize()
    return "returned"


@_contract(
    "bytes sent to the device come back the same",
    "_copy_from in both directions, and the order of copies on one stream",
)
def _bytes_come_back(backend: TorchDeviceBackend) -> str:
    if not _holds_tensors(backend):
        return "not tried: no tensors on this device"
    there = torch.arange(251, dtype=torch.uint8).repeat(1000)
    back = there.to(backend.device).cpu()
    _meet(bool(torch.equal(there, back)), f"{int((there != back).sum())} of {there.numel()} bytes differ")
    return f"{there.numel()} bytes the same"


@_contract(
    "a copy from pinned memory on a new stream is there once that stream's event has completed",
    "order copies with the stream that is current when they are given, and complete events after them",
)
def _side_stream_copies_are_ordered(backend: TorchDeviceBackend) -> str:
    if not (backend.capabilities.async_copies and _holds_tensors(backend)):
        return "not tried: " + (backend.why_not("async_copies") or "no tensors on this device")
    host = backend.pin_memory(torch.full((1 << 20,), 7, dtype=torch.uint8))
    target = torch.empty(host.numel(), dtype=torch.uint8, device=backend.device)
    event = backend.Event()
    with backend.stream(backend.Stream()):
        target.copy_(host, non_blocking=True)
        event.record()
    event.synchronize()
    wrong = int((target.cpu() != 7).sum())
    _meet(wrong == 0, f"{wrong} bytes had not arrived")
    return "all bytes were there"


@_contract(
    "pinned memory is recognised by this device, ordinary memory is not; or pinning is refused",
    "getPinnedMemoryAllocator and isPinnedPtr of the hooks: both or neither",
)
def _pinning_is_real(backend: TorchDeviceBackend) -> str:
    ordinary = torch.arange(24, dtype=torch.float32).reshape(4, 6).t()
    _meet(not backend.is_pinned(ordinary), "ordinary memory is called pinned")
    if not backend.capabilities.pinned_memory:
        return _refused(lambda: backend.pin_memory(ordinary), "pin_memory()")
    pinned = backend.pin_memory(ordinary)
    _meet(backend.is_pinned(pinned), "memory from pin_memory() is not called pinned")
    _meet(bool(torch.equal(pinned, ordinary)), "pin_memory() changed values")
    _meet(pinned.stride() == ordinary.stride(), f"pin_memory() changed strides to {pinned.stride()}")
    return "recognised"


@_contract(
    "statistics of this index grow with a block on it; or they answer 0",
    "getDeviceStats of a c10::DeviceAllocator, or memory_allocated(device) and max_memory_allocated(device)",
)
def _statistics_follow_memory(backend: TorchDeviceBackend) -> str:
    if not backend.capabilities.memory_stats:
        peak = backend.max_memory_allocated()
        _meet(peak == 0, f"max_memory_allocated() is {peak} although there are no statistics")
        return "none"
    if not _holds_tensors(backend):
        return f"{backend.max_memory_allocated()} bytes; growth not tried: no tensors on this device"
    size = (
        48 << 20
    )  # on the cpu, more than the heap would serve from what was freed before (32 MiB in the GNU C library)
    backend.reset_peak_memory_stats()
    before = backend.memory_allocated()
    block = torch.zeros(size, dtype=torch.uint8).to(backend.device)
    grown = backend.memory_allocated() - before
    peak = backend.max_memory_allocated()
    del block
    _meet(grown >= size // 2, f"a block of {size} bytes made memory_allocated() grow by {grown}")
    _meet(peak >= before + size // 2, f"the peak is {peak}, {before} bytes before a block of {size}")
    return f"grew by {grown} for a block of {size}"


@_contract(
    "0 <= free <= total, total more than 0; or mem_get_info() refuses",
    "getMemoryInfo of a c10::DeviceAllocator, or mem_get_info(device) of the module",
)
def _free_memory_is_known(backend: TorchDeviceBackend) -> str:
    if not backend.capabilities.memory_info:
        return _refused(backend.mem_get_info, "mem_get_info()")
    free, total = backend.mem_get_info()
    _meet(0 <= free <= total and total > 0, f"free {free}, total {total}")
    return f"free {free}, total {total}"


@_contract("empty_cache() returns None on every device", "emptyCache of the allocator, empty_cache() of the module")
def _empty_cache_returns(backend: TorchDeviceBackend) -> str:
    answer: Any = backend.empty_cache()  # type: ignore[func-returns-value]
    _meet(answer is None, f"it returned {answer!r}")
    return "returned"


@_contract(
    "a seed gives the same state again, and a state can be put back; or the state is refused",
    "getDefaultGenerator of the hooks with set_current_seed, get_state and set_state",
)
def _seeds_repeat(backend: TorchDeviceBackend) -> str:
    try:
        before = backend.get_rng_state()
    except UnsupportedOperation as error:
        return f"refused: {error}"
    try:
        backend.manual_seed(20)
        twenty = backend.get_rng_state()
        backend.manual_seed(21)
        _meet(not torch.equal(twenty, backend.get_rng_state()), "two seeds gave the same state")
        backend.manual_seed(20)
        _meet(bool(torch.equal(twenty, backend.get_rng_state())), "the same seed gave two states")
    finally:
        backend.set_rng_state(before)
    _meet(bool(torch.equal(before, backend.get_rng_state())), "a state that was put back is another")
    return "repeated"


@_contract(
    "out of memory is recognised by its class, also below `raise ... from`, and nothing else is",
    "raise torch.OutOfMemoryError (c10::OutOfMemoryError), or tell noria the text of the error",
)
def _out_of_memory_is_told_apart(backend: TorchDeviceBackend) -> str:
    own = backend.OutOfMemoryError("no memory left")
    wrapped = RuntimeError("block 3 failed")
    wrapped.__cause__ = own
    _meet(backend.is_out_of_memory(own), f"{type(own).__name__} is not recognised")
    _meet(backend.is_out_of_memory(wrapped), "an error raised from it is not recognised")
    for other in (RuntimeError("shapes do not match"), ValueError("out of range"), KeyboardInterrupt()):
        _meet(not backend.is_out_of_memory(other), f"{other!r} counts as out of memory")
    return f"{type(own).__name__}"


@_contract(
    "what is missing raises UnsupportedOperation with the names of the device and the operation",
    "report it to noria",
)
def _missing_operations_are_named(backend: TorchDeviceBackend) -> str:
    name = "an_operation_that_no_device_has"
    try:
        getattr(backend, name)
    except UnsupportedOperation as error:
        _meet(name in str(error) and str(backend.device) in str(error), f"the text is {error}")
        return "named"
    raise _Unmet("no error")


@_contract(
    "an index beyond the last device is a ValueError",
    "deviceCount() of the guard, device_count() of the module",
)
def _bad_index_is_refused(backend: TorchDeviceBackend) -> str:
    beyond = torch.device(backend.type, min(backend.device_count() + 1, 127))
    try:
        TorchDeviceBackend(beyond)
    except ValueError as error:
        return f"refused: {error}"
    raise _Unmet(f"{beyond} was accepted")


def _holds_tensors(backend: TorchDeviceBackend) -> bool:
    """False for meta, and for a device that only a Python module describes when no kernel serves it."""
    if backend.type == "meta":
        return False
    try:
        torch.empty(1, dtype=torch.uint8, device=backend.device)
    except Exception:  # whatever torch raises for a device that it does not know
        if "C++" in backend.served_by():
            raise
        return False
    return True
