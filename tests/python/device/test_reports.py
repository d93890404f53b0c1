"""Public reports about device back ends, one test each, named by their number in the log of reports."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import stand_ins
import torch

import noria
from noria import TorchDeviceBackend, UnsupportedOperation

StandIn = Callable[..., Any]


def test_report_160_npu_with_streams_streams(on_stub: Any, with_stand_in: Any) -> None:
    script = """
        backend = noria.TorchDeviceBackend("npu")
        stream = backend.Stream()
        with backend.stream(stream):
            assert backend.current_stream() == stream
        print(backend.capabilities.streams, hasattr(backend, "Stream"))
    """
    assert on_stub(script) == "True True"
    assert with_stand_in(script, "npu", "Full") == "True True"


def test_report_161_drop_in_with_a_capability_table(stand_in: StandIn) -> None:
    stand_in("xpu", stand_ins.Full)
    backend = TorchDeviceBackend("xpu:1")
    for member in ("device", "module", "empty_cache", "manual_seed", "mem_get_info", "max_memory_allocated"):
        assert hasattr(backend, member)
    assert backend.capabilities.streams
    assert backend.why_not("pinned_memory") != ""
    # The places where the upstream class acts on the current device.
    assert backend.Stream().index == 1
    backend.synchronize()
    backend.empty_cache()
    assert backend.module.calls == [("synchronize", 1), ("empty_cache", 1)]


def test_report_163_xpu_needs_no_monkeypatched_empty_cache(stand_in: StandIn) -> None:
    module = stand_in("xpu", stand_ins.Full)
    noria.empty_device_cache()
    assert noria.get_device() == "xpu"
    assert module.calls == [("empty_cache", 0)]


def test_report_164_the_device_is_remembered_in_a_second_call(stand_in: StandIn) -> None:
    stand_in("xpu", stand_ins.Full)
    first = TorchDeviceBackend("xpu:1")
    torch.xpu.set_device(0)
    assert [first.device, TorchDeviceBackend(first.device).device] == [torch.device("xpu:1")] * 2
    assert first.mem_get_info() == (20, 100)


def test_report_166_neuron_without_an_allocator_is_one_backend(with_stand_in: Any) -> None:
    script = """
        backend = noria.TorchDeviceBackend("neuron:1")
        backend.empty_cache()
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            answers = [backend.max_memory_allocated(), backend.max_memory_allocated()]
            answers += [backend.reset_peak_memory_stats()]
        try:
            backend.mem_get_info()
        except noria.UnsupportedOperation as error:
            answers.append(str(error))
        print(answers, len(said), backend.capabilities.float64)
    """
    assert with_stand_in(script, "neuron", "NoAllocator") == (
        "[0, 0, None, 'neuron:1 does not support mem_get_info: torch.neuron has no mem_get_info'] 2 False"
    )


def test_report_167_mlu_needs_no_branch_of_its_own(with_stand_in: Any) -> None:
    script = """
        backend = noria.TorchDeviceBackend()
        backend.manual_seed(9)
        print(backend.device, backend.memory_allocated(), module.seeds, end=" ")
        print(noria.TorchDeviceBackend("mlu:1").mem_get_info())
    """
    assert with_stand_in(script, "mlu", "Full") == "mlu:0 100 {0: 9, 1: 0} (20, 100)"


def test_report_169_other_hosts_never_touch_cuda(fresh_python: Any) -> None:
    script = """
        import torch

        if torch.cuda.is_available():
            print("untouched")
            raise SystemExit

        class Cuda:
            def __getattr__(self, name):
                raise AssertionError(f"torch.cuda.{name} was touched")

        torch.cuda = Cuda()
        import noria
        import noria.device.report

        for device in ("cpu", "meta", None):
            backend = noria.TorchDeviceBackend(device)
            backend.synchronize(), backend.empty_cache(), backend.current_stream()
            if device != "meta":  # there it is torch.manual_seed, which seeds whatever torch has
                backend.manual_seed(1)
            backend.is_available(), backend.device_count(), backend.capabilities, backend.stream_or_none()
            backend.is_out_of_memory(RuntimeError("CUDA out of memory"))
            noria.conformance.check(backend)
        noria.get_device(), noria.empty_device_cache(), noria.synchronize(), noria.device_backends()
        noria.device.report.machine()
        for name in ("cuda", "cuda:1"):
            try:
                noria.TorchDeviceBackend(name)
            except ValueError as error:
                assert "Usable: cpu" in str(error), error
        print("untouched")
    """
    assert fresh_python(script, PYTHONWARNINGS="ignore") == "untouched"


def test_report_170_a_missing_function_is_a_no_op_or_a_typed_error(stand_in: StandIn) -> None:
    assert TorchDeviceBackend("cpu").empty_cache() is None  # type: ignore[func-returns-value]
    stand_in("hpu", stand_ins.NothingAtAll)
    backend = TorchDeviceBackend("hpu")
    backend.empty_cache()
    backend.synchronize()
    with pytest.raises(UnsupportedOperation, match="hpu:0 does not support mem_get_info"):
        backend.mem_get_info()
    with pytest.raises(UnsupportedOperation, match="hpu:0 does not support memory_summary"):
        backend.memory_summary()


def test_report_172_torch_accelerator_is_never_asked(monkeypatch: pytest.MonkeyPatch, stand_in: StandIn) -> None:
    class Accelerator:
        def __getattr__(self, name: str) -> Any:
            raise AssertionError(f"torch.accelerator.{name} was asked")

    monkeypatch.setattr(torch, "accelerator", Accelerator())
    stand_in("xpu", stand_ins.Full)
    assert TorchDeviceBackend().max_memory_allocated() == 1000
    assert TorchDeviceBackend("cpu").max_memory_allocated() > 0


def test_report_173_memory_functions_that_assert_are_no_crash(stand_in: StandIn) -> None:
    stand_in("xpu", stand_ins.AssertingMemory)
    backend = TorchDeviceBackend("xpu")
    with pytest.warns(RuntimeWarning, match="INTERNAL ASSERT"):
        backend.empty_cache()
    with pytest.warns(RuntimeWarning, match="no memory statistics"):
        assert backend.max_memory_allocated() == 0
    with pytest.raises(UnsupportedOperation, match="INTERNAL ASSERT"):
        backend.mem_get_info()


def test_report_173_the_devices_own_functions_stand_in_for_pytorchs_allocator(on_stub: Any) -> None:
    script = """
        module = torch.get_device_module("npu")
        module.max_memory_allocated = lambda device=None: 77 + device
        module.mem_get_info = lambda device=None: (5, 50)
        backend = noria.TorchDeviceBackend("npu:1")
        print(backend.max_memory_allocated(), backend.mem_get_info())
    """
    assert on_stub(script, device_allocator=False, memory_info=False) == "78 (5, 50)"


def test_report_175_without_default_stream_the_current_one_answers(stand_in: StandIn, on_stub: Any) -> None:
    stand_in("xpu", stand_ins.NoDefaultStream)
    backend = TorchDeviceBackend("xpu:1")
    assert backend.default_stream() is backend.current_stream()
    script = """
        backend = noria.TorchDeviceBackend("npu")
        print(backend.default_stream() == backend.current_stream(), backend.capabilities.streams)
    """
    assert on_stub(script, default_stream=False) == "True True"


def test_report_176_a_stream_without_enter_gets_its_context_from_us(stand_in: StandIn) -> None:
    module = stand_in("hpu", stand_ins.Streams)
    backend = TorchDeviceBackend("hpu:1")
    stream, before = backend.Stream(), backend.current_stream()
    assert not hasattr(stream, "__enter__")
    with pytest.raises(ZeroDivisionError), backend.stream(stream):
        assert backend.current_stream() is stream
        assert module.current == 1
        raise ZeroDivisionError
    assert backend.current_stream() is before
    assert module.current == 0


def test_report_178_mps_is_served_without_torch_accelerator(fresh_python: Any) -> None:
    # No mps here: what can be said is that its backend is chosen by type, and refuses with what is there.
    script = """
        import noria
        try:
            noria.TorchDeviceBackend("mps")
        except ValueError as error:
            print(error)
    """
    if torch.backends.mps.is_available():
        assert not TorchDeviceBackend("mps").capabilities.streams
    else:
        assert "device 'mps' cannot be used: PyTorch sees no mps device here" in fresh_python(script)


def test_report_179_a_pin_that_does_nothing_is_not_a_capability(on_stub: Any) -> None:
    script = """
        backend = noria.TorchDeviceBackend("npu")
        tensor = torch.ones(4)
        try:
            backend.pin_memory(tensor)
        except noria.UnsupportedOperation as error:
            offers = backend.capabilities
            print(offers.pinned_memory, offers.async_copies, backend.is_pinned(tensor), error)
    """
    assert on_stub(script, pin_is_real=False) == (
        "False False False npu:0 does not support pin_memory: memory from its pinned allocator is not page-locked"
    )


def test_report_L25_a_host_without_an_accelerator_is_no_attribute_error() -> None:
    if noria.get_device() != "cpu":
        pytest.skip("has an accelerator")
    backend = TorchDeviceBackend()
    assert backend.device == torch.device("cpu")
    backend.synchronize()
    assert backend.stream_or_none() is None


def test_report_L26_a_side_stream_is_of_the_onload_device(on_stub: Any, stand_in: StandIn) -> None:
    script = """
        backend = noria.TorchDeviceBackend("npu:1")
        print(stub.current_device(), backend.Stream().device, backend.current_stream().device, stub.current_device())
    """
    assert on_stub(script) == "0 npu:1 npu:1 0"
    module = stand_in("hpu", stand_ins.Full)
    assert (TorchDeviceBackend("hpu:1").Stream().device, module.current) == (torch.device("hpu:1"), 0)


def test_report_L27_a_device_without_streams_says_so_before_it_is_used(stand_in: StandIn) -> None:
    stand_in("hpu", stand_ins.NoStreams)
    backend = TorchDeviceBackend("hpu")
    assert not hasattr(backend, "Stream")
    assert backend.stream_or_none() is None
    with pytest.raises(UnsupportedOperation, match=r"hpu:0 does not support Stream: torch\.hpu has no Stream"):
        backend.Stream()
    with warnings.catch_warnings(), backend.stream(None):
        warnings.simplefilter("error")
        backend.current_stream().synchronize()
