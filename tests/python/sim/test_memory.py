"""Device memory: what is counted, what happens when there is none left."""

from __future__ import annotations

import gc

import pytest
import torch

MIB = 1 << 20


def test_allocated_and_peak_count_live_tensors(sim) -> None:
    a = torch.empty(MIB, dtype=torch.uint8, device="sim")
    b = torch.empty(2 * MIB, dtype=torch.uint8, device="sim")
    assert torch.sim.memory_allocated() == 3 * MIB
    del b
    assert torch.sim.memory_allocated() == MIB
    assert torch.sim.max_memory_allocated() == 3 * MIB
    torch.sim.reset_peak_memory_stats()
    assert torch.sim.max_memory_allocated() == MIB
    assert torch.accelerator.memory_allocated() == MIB
    assert torch.accelerator.max_memory_allocated() == MIB
    del a
    assert torch.sim.memory_allocated() == 0
    torch.sim.empty_cache()
    assert torch.sim.memory_reserved() == 0


def test_results_that_a_cpu_kernel_allocates_are_counted(sim) -> None:
    table = torch.zeros(1024, 256, device="sim")
    before = torch.sim.memory_allocated()
    index = torch.zeros(1024, dtype=torch.int64, device="sim")
    rows = torch.index_select(table, 0, index)
    assert torch.sim.memory_allocated() - before == 4 * 1024 * 256 + 8 * 1024
    del rows
    assert torch.sim.memory_allocated() - before == 8 * 1024


def test_out_of_memory_is_the_error_that_pytorch_users_catch(simulate) -> None:
    simulate(memory=64 * MIB)
    held = torch.empty(48 * MIB, dtype=torch.uint8, device="sim")
    with pytest.raises(torch.OutOfMemoryError, match=r"Tried to allocate 32.0 MiB.*64.0 MiB.*16.0 MiB.*48.0 MiB"):
        torch.empty(32 * MIB, dtype=torch.uint8, device="sim")
    assert torch.sim.OutOfMemoryError is torch.OutOfMemoryError
    del held
    torch.empty(32 * MIB, dtype=torch.uint8, device="sim")


def test_a_result_that_does_not_fit_is_out_of_memory_too(simulate) -> None:
    simulate(memory=8 * MIB)
    table = torch.zeros(1, 1024, device="sim")
    index = torch.zeros(4096, dtype=torch.int64, device="sim")
    with pytest.raises(torch.OutOfMemoryError):
        torch.index_select(table, 0, index)
    assert (table + 1).sum().item() == 1024


def test_attention_holds_no_matrix_of_scores(sim) -> None:
    heads, length, width = 8, 1024, 64
    q, k, v = (torch.randn(1, heads, length, width, device="sim") for _ in range(3))
    torch.sim.reset_peak_memory_stats()
    before = torch.sim.memory_allocated()
    torch.nn.functional.scaled_dot_product_attention(q, k, v)
    grown = torch.sim.max_memory_allocated() - before
    assert grown < 2 * q.nbytes
    assert grown < 4 * heads * length * length / 4


def test_storage_can_be_emptied_and_filled_again(sim) -> None:
    x = torch.arange(8.0, device="sim")
    x.untyped_storage().resize_(0)
    assert torch.sim.memory_allocated() == 0
    x.untyped_storage().resize_(32)
    x.copy_(torch.arange(8.0))
    assert torch.equal(x.cpu(), torch.arange(8.0))


def test_injected_out_of_memory_strikes_once(sim) -> None:
    sim.inject("oom", after=2)
    torch.empty(1, device="sim")
    with pytest.raises(torch.OutOfMemoryError):
        torch.empty(1, device="sim")
    torch.empty(1, device="sim")


def test_a_kernel_that_fails_leaves_the_device_usable(sim) -> None:
    index = torch.tensor([7], device="sim")
    with pytest.raises(IndexError, match="out of range"):
        torch.index_select(torch.zeros(2, device="sim"), 0, index)
    gc.collect()
    assert torch.ones(3, device="sim").sum().item() == 3.0


def test_pinned_memory_is_recognised_and_counted(sim) -> None:
    host = torch.zeros(MIB, dtype=torch.uint8).pin_memory()
    assert host.is_pinned()
    assert not torch.zeros(4).is_pinned()
    assert sim.host_stats()["pinned_allocated"] == MIB
    assert torch.empty(4, pin_memory=True).is_pinned()


def test_without_a_cache_freed_memory_goes_back_at_once(simulate) -> None:
    simulate(caching_allocator=False)
    x = torch.empty(MIB, device="sim")
    del x
    assert torch.sim.memory_reserved() == 0
