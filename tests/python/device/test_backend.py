"""TorchDeviceBackend: names, errors, streams and events, memory, seeds, what is forwarded, the registry."""

from __future__ import annotations

import copy
import logging
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import stand_ins
import torch

import noria
from noria import TorchDeviceBackend, UnsupportedOperation

StandIn = Callable[..., Any]


# ---- which device


@pytest.mark.parametrize("device", ["cpu", torch.device("cpu"), torch.device("cpu", 0), "cpu:0"])
def test_the_device_is_kept_as_given(device: Any) -> None:
    backend = TorchDeviceBackend(device)
    assert backend.device == torch.device(device)
    assert (backend.type, backend.index) == ("cpu", torch.device(device).index)
    assert backend.module is torch.cpu
    assert TorchDeviceBackend("meta").module is None


def test_without_an_index_the_current_device_is_meant(stand_in: StandIn) -> None:
    stand_in("xpu", stand_ins.Full).current = 1
    assert TorchDeviceBackend("xpu").device == torch.device("xpu:1")


@pytest.mark.parametrize("device", [3.5, object(), ["cpu"]])
def test_what_cannot_name_a_device_is_a_type_error(device: Any) -> None:
    with pytest.raises(TypeError, match=r"str, an int or a torch.device"):
        TorchDeviceBackend(device)


@pytest.mark.parametrize(
    ("device", "text"),
    [
        ("npu", "no device is called 'npu'.*Usable: cpu"),
        ("cpu:4", "device 'cpu:4' cannot be used: there is 1 cpu device"),
        ("hpu", "PyTorch sees no hpu device here. Usable: cpu"),
        ("", "no device is called ''"),
        ("cpu:x", "no device is called 'cpu:x'"),
    ],
)
def test_a_device_that_is_not_there_is_a_value_error_that_says_what_is(device: str, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        TorchDeviceBackend(device)


def test_an_index_out_of_range_says_what_is_there(stand_in: StandIn, on_stub: Any) -> None:
    stand_in("xpu", stand_ins.Full)
    with pytest.raises(ValueError, match="device 'xpu:2' cannot be used: there is xpu:0 to xpu:1"):
        TorchDeviceBackend("xpu:2")
    script = """
        try:
            noria.TorchDeviceBackend("npu:2")
        except ValueError as error:
            print(error)
    """
    assert on_stub(script) == "device 'npu:2' cannot be used: there are 2 npu devices, npu:0 to npu:1"


def test_a_device_that_plugs_in_after_import_is_found(stand_in: StandIn) -> None:
    assert "hpu" not in noria.device_backends()
    with pytest.raises(ValueError, match="hpu"):
        TorchDeviceBackend("hpu")
    before = noria.get_device()
    stand_in("hpu", stand_ins.Full)
    assert (before, noria.get_device()) == ("cpu", "hpu")
    assert TorchDeviceBackend("hpu").device == torch.device("hpu:0")


def test_a_stub_that_plugs_in_after_import_is_found(fresh_python: Any) -> None:
    script = f"""
        import sys; sys.path.insert(0, {str(Path(__file__).parent)!r})
        import noria
        before = noria.get_device()
        import noria_stub_device as stub
        stub.install("npu")
        print(before, noria.get_device(), noria.TorchDeviceBackend().device)
    """
    assert fresh_python(script) == "cpu npu npu:0"


# ---- devices


def test_set_device_makes_this_index_current_and_others_by_number(stand_in: StandIn) -> None:
    module = stand_in("xpu", stand_ins.Full)
    backend = TorchDeviceBackend("xpu:1")
    assert (backend.is_available(), backend.device_count(), backend.current_device()) == (True, 2, 0)
    backend.set_device()
    assert module.current == 1
    backend.set_device(0)
    assert backend.current_device() == 0
    with pytest.raises(ValueError, match="it cannot make cpu current"):
        backend.set_device("cpu")


def test_a_call_that_raises_leaves_the_current_device(stand_in: StandIn) -> None:
    module = stand_in("xpu", stand_ins.Full)

    def failing() -> None:
        assert module.current == 1
        raise ZeroDivisionError

    module.failing = failing
    with pytest.raises(ZeroDivisionError):
        TorchDeviceBackend("xpu:1").failing()
    assert module.current == 0


# ---- streams and events


def test_cpu_streams_are_synchronous_and_can_be_current() -> None:
    backend = TorchDeviceBackend("cpu")
    assert not backend.capabilities.streams
    assert backend.stream_or_none() is None
    stream = backend.Stream(priority=-1)
    assert stream != backend.default_stream() == backend.current_stream()
    with backend.stream(stream) as entered:
        assert entered is None or entered == stream
        assert backend.current_stream() == stream
        with stream:
            assert backend.current_stream() == stream
    assert backend.current_stream() == backend.default_stream()
    stream.synchronize()
    stream.wait_stream(backend.current_stream())
    event = stream.record_event()
    stream.wait_event(event)
    assert stream.query()
    assert event.query()


def test_cpu_events_tell_milliseconds() -> None:
    backend = TorchDeviceBackend("cpu")
    first, second = backend.Event(enable_timing=True), backend.Event(enable_timing=True)
    first.record()
    second.record(backend.current_stream())
    assert 0 <= first.elapsed_time(second) < 1000
    with pytest.raises(ValueError, match="enable_timing"):
        backend.Event().elapsed_time(second)


@pytest.mark.parametrize("stream", ["stream", 3, object()])
def test_what_is_no_stream_is_a_type_error(stream: Any) -> None:
    with pytest.raises(TypeError, match="a stream of cpu or None"):
        TorchDeviceBackend("cpu").stream(stream)


def test_a_stream_of_another_device_is_a_value_error(stand_in: StandIn) -> None:
    stand_in("xpu", stand_ins.Full)
    with pytest.raises(ValueError, match="belongs to xpu:1, and this is the backend of xpu:0"):
        TorchDeviceBackend("xpu:0").stream(TorchDeviceBackend("xpu:1").Stream())
    with pytest.raises(ValueError, match="belongs to cpu, and this is the backend of meta"):
        TorchDeviceBackend("meta").stream(TorchDeviceBackend("cpu").Stream())


def test_nested_streams_of_the_stub_come_back_in_order(on_stub: Any) -> None:
    script = """
        backend = noria.TorchDeviceBackend("npu:1")
        first, second, before = backend.Stream(), backend.Stream(), backend.current_stream()
        seen = []
        try:
            with backend.stream(first):
                seen.append(backend.current_stream() == first)
                with backend.stream(second):
                    seen.append(backend.current_stream() == second)
                    seen.append(stub.current_device())
                    raise KeyError
        except KeyError:
            seen += [backend.current_stream() == before, stub.current_device()]
        print(seen, type(first).__name__)
    """
    assert on_stub(script) == "[True, True, 1, True, 0] Stream"


def test_streams_are_of_the_class_that_the_devices_module_has(on_stub: Any) -> None:
    script = """
        class Stream(torch.Stream):
            pass
        torch.get_device_module("npu").Stream = Stream
        backend = noria.TorchDeviceBackend("npu:1")
        print(type(backend.Stream()) is Stream, type(backend.current_stream()) is Stream, backend.Stream().device)
    """
    assert on_stub(script) == "True True npu:1"


def test_a_stream_on_the_stub_orders_copies_without_a_host_wait(on_stub: Any) -> None:
    script = """
        backend = noria.TorchDeviceBackend("npu")
        host = backend.pin_memory(torch.arange(8))
        target = torch.empty(8, dtype=torch.int64, device="npu")
        waits = stub.host_syncs()
        stream = backend.Stream()
        with backend.stream(stream):
            target.copy_(host, non_blocking=True)
        print(stub.pending(0, stream.stream_id), stub.host_syncs() - waits, end=" ")
        event = backend.Event()
        event.record(stream)
        event.synchronize()
        print(target.cpu().tolist())
    """
    assert on_stub(script) == "1 0 [0, 1, 2, 3, 4, 5, 6, 7]"


# ---- memory


def test_cpu_memory_is_the_process_and_its_peak_can_be_reset() -> None:
    backend = TorchDeviceBackend("cpu")
    backend.reset_peak_memory_stats()
    before = backend.memory_allocated()
    block = torch.ones(64 << 20, dtype=torch.uint8)
    assert backend.memory_allocated() - before > 48 << 20
    del block
    assert backend.max_memory_allocated() - before > 48 << 20
    backend.reset_peak_memory_stats()
    assert backend.max_memory_allocated() - before < 32 << 20


def test_cpu_free_memory_is_at_most_what_the_kernel_offers() -> None:
    free, total = TorchDeviceBackend("cpu").mem_get_info()
    kilobytes = {line.split(":")[0]: int(line.split()[1]) for line in Path("/proc/meminfo").read_text().splitlines()}
    assert 0 < free <= total <= kilobytes["MemTotal"] * 1024
    assert free <= kilobytes["MemAvailable"] * 1024 + (256 << 20)


def test_statistics_are_of_the_index(stand_in: StandIn) -> None:
    stand_in("xpu", stand_ins.Full)
    backend = TorchDeviceBackend("xpu:1")
    assert (backend.memory_allocated(), backend.max_memory_allocated(), backend.mem_get_info()) == (
        101,
        1001,
        (20, 100),
    )
    backend.reset_peak_memory_stats()
    assert [TorchDeviceBackend(f"xpu:{index}").max_memory_allocated() for index in (0, 1)] == [1000, 0]


def test_empty_cache_without_a_cache_says_so_once_at_debug_level(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, logger="noria"):
        for _ in range(3):
            TorchDeviceBackend("cpu").empty_cache()
    assert [record.getMessage() for record in caplog.records] == [
        "empty_cache of cpu does nothing: PyTorch keeps no freed cpu memory"
    ]


def test_pinning_keeps_values_and_strides_and_refuses_what_it_cannot(on_stub: Any) -> None:
    script = """
        backend = noria.TorchDeviceBackend("npu:1")
        plain = torch.arange(6.0).reshape(2, 3).t()
        pinned = backend.pin_memory(plain)
        print(torch.equal(pinned, plain), pinned.stride() == plain.stride(), pinned.device, end=" ")
        print(backend.is_pinned(pinned), backend.is_pinned(plain), backend.pin_memory(pinned) is pinned, end=" ")
        print(backend.pin_memory(torch.empty(0)).shape, stub.current_device())
    """
    assert on_stub(script) == "True True cpu True False True torch.Size([0]) 0"
    backend = TorchDeviceBackend("cpu")
    with pytest.raises(UnsupportedOperation, match="cpu does not support pin_memory"):
        backend.pin_memory(torch.ones(1))
    with pytest.raises(TypeError, match="takes a tensor"):
        backend.pin_memory([1.0])  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="the tensor is on meta"):
        backend.pin_memory(torch.ones(1, device="meta"))


# ---- random numbers


def test_cpu_seed_and_state() -> None:
    backend = TorchDeviceBackend("cpu")
    backend.manual_seed(5)
    state, first = backend.get_rng_state(), torch.rand(3)
    backend.set_rng_state(state)
    assert torch.equal(first, torch.rand(3))
    torch.manual_seed(5)
    assert torch.equal(first, torch.rand(3))
    assert backend.Generator().device == torch.device("cpu")


def test_without_a_generator_every_generator_is_seeded() -> None:
    TorchDeviceBackend("meta").manual_seed(11)
    assert torch.initial_seed() == 11
    with pytest.raises(UnsupportedOperation, match="meta does not support get_rng_state"):
        TorchDeviceBackend("meta").get_rng_state()


def test_the_seed_is_of_the_index(stand_in: StandIn) -> None:
    module = stand_in("xpu", stand_ins.Full)
    backend = TorchDeviceBackend("xpu:1")
    backend.manual_seed(3)
    assert module.seeds == {0: 0, 1: 3}
    backend.set_rng_state(torch.tensor([8]))
    assert (module.seeds, backend.get_rng_state().item()) == ({0: 0, 1: 8}, 8)


# ---- out of memory


def test_out_of_memory_by_class_by_text_and_below_from(stand_in: StandIn) -> None:
    stand_in("hpu", stand_ins.Full)
    hpu, cpu = TorchDeviceBackend("hpu"), TorchDeviceBackend("cpu")
    text = "[Rank:0] FATAL ERROR :: MODULE:PT_DEVMEM Allocation failed for size::268435456 (256)MB"
    assert hpu.OutOfMemoryError is stand_ins.Full.OutOfMemoryError
    assert cpu.OutOfMemoryError is torch.OutOfMemoryError
    for error in (torch.OutOfMemoryError("x"), hpu.OutOfMemoryError("x"), RuntimeError(text)):
        assert hpu.is_out_of_memory(error)
    assert cpu.is_out_of_memory(MemoryError())
    assert not hpu.is_out_of_memory(MemoryError())
    for error in (ValueError(text), RuntimeError("out of range"), RuntimeError("NPU out of memory"), KeyError("x")):
        assert not hpu.is_out_of_memory(error)
    try:
        try:
            raise RuntimeError(text)
        except RuntimeError as cause:
            raise ValueError("block 3 failed") from cause
    except ValueError as wrapped:
        assert hpu.is_out_of_memory(wrapped)
        assert not cpu.is_out_of_memory(wrapped)
    with pytest.raises(TypeError, match="takes an exception"):
        cpu.is_out_of_memory("CUDA out of memory")  # type: ignore[arg-type]


def test_an_error_met_while_another_was_handled_does_not_inherit_its_meaning() -> None:
    try:
        try:
            raise MemoryError
        except MemoryError:
            raise KeyError("cleaning up")  # noqa: B904
    except KeyError as error:
        assert not TorchDeviceBackend("cpu").is_out_of_memory(error)


def test_a_circle_of_causes_ends() -> None:
    first, second = RuntimeError("a"), RuntimeError("b")
    first.__cause__, second.__cause__ = second, first
    assert not TorchDeviceBackend("cpu").is_out_of_memory(first)


def test_real_errors_of_the_host_are_recognised() -> None:
    backend = TorchDeviceBackend("cpu")
    with pytest.raises(RuntimeError) as caught:
        torch.empty(1 << 50, dtype=torch.uint8)
    assert backend.is_out_of_memory(caught.value)
    with pytest.raises(RuntimeError) as caught:
        torch.ones(2) @ torch.ones(3)
    assert not backend.is_out_of_memory(caught.value)


def test_out_of_memory_of_the_stub_is_torchs_own_class(on_stub: Any) -> None:
    script = """
        backend = noria.TorchDeviceBackend("npu")
        try:
            torch.empty(5000, dtype=torch.uint8, device="npu")
        except torch.OutOfMemoryError as error:
            print(backend.is_out_of_memory(error), noria.TorchDeviceBackend("cpu").is_out_of_memory(ValueError()))
    """
    assert on_stub(script, capacity=1000) == "True False"


# ---- everything else


def test_what_is_not_ours_is_the_modules_and_runs_on_this_index(stand_in: StandIn) -> None:
    module = stand_in("xpu", stand_ins.Full)
    module.some_constant = 7
    backend = TorchDeviceBackend("xpu:1")
    assert backend.some_constant == 7
    assert backend.memory_reserved() == ("reserved", 1)
    assert module.current == 0


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_what_is_missing_names_device_and_operation(device: str) -> None:
    backend = TorchDeviceBackend(device)
    assert not hasattr(backend, "frobnicate")
    with pytest.raises(UnsupportedOperation, match=f"{device} does not support frobnicate") as caught:
        backend.frobnicate()
    assert isinstance(caught.value, (NotImplementedError, AttributeError, noria.Error))


def test_backends_compare_copy_and_pickle_by_device() -> None:
    backend = TorchDeviceBackend("cpu")
    assert backend == TorchDeviceBackend("cpu") != TorchDeviceBackend("meta")
    assert copy.deepcopy(backend) == pickle.loads(pickle.dumps(backend)) == backend
    assert len({backend, TorchDeviceBackend("cpu")}) == 1
    assert repr(backend).startswith("TorchDeviceBackend('cpu': events")


def test_conveniences_are_one_line_over_the_backend(stand_in: StandIn) -> None:
    module = stand_in("xpu", stand_ins.Full)
    assert noria.get_device() == "xpu"
    noria.synchronize("xpu:1")
    noria.empty_device_cache(torch.device("xpu:1"))
    noria.synchronize()
    assert module.calls == [("synchronize", 1), ("empty_cache", 1), ("synchronize", 0)]


# ---- registry


class Vendor(TorchDeviceBackend):
    def empty_cache(self) -> None:
        raise ZeroDivisionError


def test_a_registered_factory_serves_its_type_and_may_build_on_ours(stand_in: StandIn) -> None:
    stand_in("hpu", stand_ins.Full)
    given: list[torch.device] = []

    def factory(device: torch.device) -> TorchDeviceBackend:
        given.append(device)
        assert type(TorchDeviceBackend(device)) is TorchDeviceBackend
        return Vendor(device)

    noria.register_device_backend("hpu", factory)
    backend = TorchDeviceBackend("hpu:1")
    assert isinstance(backend, Vendor)
    assert given == [torch.device("hpu:1")]
    with pytest.raises(ZeroDivisionError):
        noria.empty_device_cache("hpu:1")
    noria.register_device_backend("hpu", Vendor)
    assert type(TorchDeviceBackend("hpu")) is Vendor
    assert "hpu" in noria.device_backends()


def test_a_factory_may_replace_a_built_in_backend() -> None:
    noria.register_device_backend("cpu", Vendor)
    assert type(TorchDeviceBackend("cpu")) is Vendor
    assert type(TorchDeviceBackend("meta")) is TorchDeviceBackend


def test_wrong_registrations_say_what_is_wrong() -> None:
    with pytest.raises(TypeError, match="a device type is a str"):
        noria.register_device_backend(torch.device("cpu"), Vendor)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="without an index"):
        noria.register_device_backend("npu:0", Vendor)
    with pytest.raises(TypeError, match="must be callable"):
        noria.register_device_backend("npu", None)  # type: ignore[arg-type]
    noria.register_device_backend("hpu", lambda device: None)  # type: ignore[arg-type, return-value]
    with pytest.raises(TypeError, match="the factory of 'hpu' gave None"):
        TorchDeviceBackend("hpu")


def test_a_package_announces_its_backend_by_entry_point(tmp_path: Path) -> None:
    info = tmp_path / "vendor-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: vendor\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[noria.device_backends]\nhpu = vendor_backend:Backend\n")
    (tmp_path / "vendor_backend.py").write_text(
        "import noria\nclass Backend(noria.TorchDeviceBackend):\n    def synchronize(self):\n        print('vendor')\n"
    )
    # Not by device_backends() alone, which always looks afresh.
    script = (
        f"import noria, sys; noria.TorchDeviceBackend('cpu'); sys.path.insert(0, {str(tmp_path)!r}); "
        "noria.synchronize('hpu'); print('hpu' in noria.device_backends())"
    )
    done = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True)
    assert done.stdout.split() == ["vendor", "True"]


def test_importing_noria_is_light(fresh_python: Any) -> None:
    script = """
        import sys, torch
        before = set(sys.modules)
        import noria
        loaded = {name.split(".")[0] for name in set(sys.modules) - before}
        heavy = {"rich", "diffusers", "transformers", "matplotlib"}
        print(sorted(loaded & heavy), "noria.device" in sys.modules)
    """
    assert fresh_python(script) == "[] False"
