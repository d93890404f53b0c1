"""Wrong argument types: a TypeError or ValueError in noria's words that shows what was given."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import noria
import noria.sim
from noria import TorchDeviceBackend

WRONG: dict[str, tuple[Callable[[Any, Any], object], str]] = {
    "two arguments": (lambda b, s: TorchDeviceBackend("cpu", "x"), "takes one argument, device.*'cpu', 'x'"),
    "unknown name": (lambda b, s: TorchDeviceBackend(where="cpu"), "takes one argument, device.*where='cpu'"),
    "priority without its name": (lambda b, s: b.Stream(0), r"by name, as Stream\(priority=-1\); got Stream\(0"),
    "priority": (lambda b, s: b.Stream(priority="high"), "int.*'high'"),
    "stream": (lambda b, s: b.stream(3), "stream of cpu or None, not 3"),
    "event": (lambda b, s: b.Event("timing"), "enable_timing takes bool, and got 'timing'"),
    "record": (lambda b, s: b.Event().record(5), "stream of cpu or None, not 5"),
    "record_event": (lambda b, s: b.Stream().record_event(5), "event or None, not 5"),
    "elapsed_time": (lambda b, s: b.Event(True).elapsed_time(3), "event of cpu, not 3"),
    "set_device": (lambda b, s: b.set_device(3.5), "torch.device, not 3.5"),
    "manual_seed": (lambda b, s: b.manual_seed("x"), "seed takes int, and got 'x'"),
    "set_rng_state": (lambda b, s: b.set_rng_state(1), "byte tensor, not 1"),
    "pin_memory": (lambda b, s: b.pin_memory(3), "tensor, not 3"),
    "is_pinned": (lambda b, s: b.is_pinned(3), "tensor, not 3"),
    "is_out_of_memory": (lambda b, s: b.is_out_of_memory("oom"), "exception, not 'oom'"),
    "why_not": (lambda b, s: b.why_not(3), "no capability is named 3"),
    "register": (lambda b, s: noria.register_device_backend(3, TorchDeviceBackend), "str such as 'npu', not 3"),
    "synchronize": (lambda b, s: noria.synchronize(3.5), "torch.device, not 3.5"),
    "empty_device_cache": (lambda b, s: noria.empty_device_cache([1]), r"torch.device, not \[1\]"),
    "conformance": (lambda b, s: noria.conformance.check(3.5), "torch.device, not 3.5"),
    "reserve": (lambda b, s: noria.sim.reserve("two"), "devices takes int, and got 'two'"),
    "enable profile": (lambda b, s: noria.sim.enable(7), "profile takes str or Mapping, and got 7"),
    "enable devices": (lambda b, s: noria.sim.enable(devices=True), "devices takes int, and got True"),
    "enable memory": (lambda b, s: noria.sim.enable(memory=1.5), "memory takes int or str or None, and got 1.5"),
    "enable overrides": (lambda b, s: noria.sim.enable(overrides=3), "overrides takes Mapping or None, and got 3"),
    "clock": (lambda b, s: s.clock("0"), "device takes int, and got '0'"),
    "clock index": (lambda b, s: s.clock(9), "no simulated device 9"),
    "stats": (lambda b, s: s.stats(None), "device takes int, and got None"),
    "reset_stats": (lambda b, s: s.reset_stats("0"), "device takes int, and got '0'"),
    "clear_error": (lambda b, s: s.clear_error("0"), "device takes int, and got '0'"),
    "advance_host": (lambda b, s: s.advance_host("1"), "seconds takes a number, and got '1'"),
    "set_checker": (lambda b, s: s.set_checker(3), "mode takes str, and got 3"),
    "record_timeline": (lambda b, s: s.record_timeline("on"), "on takes bool, and got 'on'"),
    "inject kind": (lambda b, s: s.inject(3), "kind takes str, and got 3"),
    "inject after": (lambda b, s: s.inject("oom", "1"), "after takes int, and got '1'"),
    "inject negative": (lambda b, s: s.inject("oom", -1), "after must not be negative, and is -1"),
}


@pytest.mark.parametrize(("call", "text"), WRONG.values(), ids=WRONG)
def test_a_wrong_argument_is_named(simulate, call: Callable[[Any, Any], object], text: str) -> None:
    with pytest.raises((TypeError, ValueError), match=text) as caught:
        call(TorchDeviceBackend("cpu"), simulate())
    assert "incompatible function arguments" not in str(caught.value)
