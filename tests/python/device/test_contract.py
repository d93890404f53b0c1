"""One contract over every kind of device: real ones, the C++ stub under vendors' names, and Python stand-ins."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import stand_ins
import torch

import noria
from noria.device.capabilities import NAMES

PRINT_FAILURES = """
    failed = [f for f in noria.conformance.check({device!r}) if not f.passed]
    print(*failed, sep="\\n", end="")
"""


def failures(device: Any) -> list[noria.conformance.Finding]:
    return [finding for finding in noria.conformance.check(device) if not finding.passed]


@pytest.mark.parametrize("device", ["cpu", "cpu:0", "meta"])
@pytest.mark.filterwarnings("ignore:.*no memory statistics")
def test_devices_of_every_machine_meet_the_contract(device: str) -> None:
    assert failures(device) == []


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("npu", {}),
        ("mlu", {"default_stream": False}),
        ("hpx", {"streams": False, "synchronize_device": False}),
        ("neuron", {"device_allocator": False, "memory_info": False, "pin": False, "generator": False}),
        ("musa", {"pin_is_real": False, "timing": False}),
        ("old", {"stream_pool_only": True}),
    ],
)
def test_the_stub_under_vendors_names_meets_the_contract(on_stub: Any, name: str, settings: dict[str, bool]) -> None:
    assert on_stub(PRINT_FAILURES.format(device=f"{name}:1"), name, **settings) == ""


@pytest.mark.parametrize("kind", stand_ins.ALL)
@pytest.mark.filterwarnings("ignore:.*no memory statistics", "ignore:empty_cache of")
def test_python_stand_ins_meet_the_contract(stand_in: Callable[..., Any], kind: str) -> None:
    module = stand_in("hpu", stand_ins.ALL[kind])
    assert failures(f"hpu:{module.count - 1}") == []


@pytest.mark.parametrize(("name", "kind"), [("npu", "Full"), ("mlu", "NoDefaultStream"), ("neuron", "NoAllocator")])
def test_python_stand_ins_under_new_names_meet_the_contract(with_stand_in: Any, name: str, kind: str) -> None:
    assert with_stand_in(PRINT_FAILURES.format(device=f"{name}:1"), name, kind) == ""


def test_a_finding_says_what_was_expected_found_and_what_to_do(stand_in: Callable[..., Any]) -> None:
    module = stand_in("hpu", stand_ins.Full)
    module.mem_get_info = lambda device=None: (200, 100)
    (finding,) = failures("hpu:1")
    assert finding.check == "free_memory_is_known"
    assert finding.expected == "0 <= free <= total, total more than 0; or mem_get_info() refuses"
    assert finding.found == "free 200, total 100"
    assert "mem_get_info(device)" in finding.remedy


def test_a_device_that_leaks_its_index_fails_the_contract(stand_in: Callable[..., Any]) -> None:
    class Leaky(stand_ins.Full):
        def current_stream(self, device: Any = None) -> Any:
            self.current = 1
            return super().current_stream(device)

    stand_in("hpu", Leaky)
    assert "current_device_is_kept" in [finding.check for finding in failures("hpu:1")]


def test_capabilities_is_a_frozen_record_of_bools() -> None:
    record = noria.TorchDeviceBackend("cpu").capabilities
    assert [field for field in NAMES if not isinstance(getattr(record, field), bool)] == []
    with pytest.raises(AttributeError):
        record.streams = True  # type: ignore[misc]


def test_conformance_of_a_device_that_is_not_there_is_a_value_error() -> None:
    if torch.cuda.is_available():
        pytest.skip("has cuda")
    with pytest.raises(ValueError, match="cuda"):
        noria.conformance.check("cuda")


def test_conformance_says_the_same_again_and_again_in_one_process() -> None:
    for _ in range(5):
        assert [finding for finding in noria.conformance.check("cpu") if not finding.passed] == []
