"""Streams and events: order, time, and the checker that watches them."""

from __future__ import annotations

import threading

import pytest
import torch

WEIGHT = 1 << 20  # elements


def test_current_stream_is_per_thread_and_per_device(simulate) -> None:
    simulate(devices=2)
    side = torch.sim.Stream(device=1)
    seen = []
    with torch.sim.stream(side):
        assert torch.sim.current_stream(1) == side
        assert torch.sim.current_stream(0) == torch.sim.default_stream(0)
        assert torch.sim.current_device() == 1
        thread = threading.Thread(target=lambda: seen.append(torch.sim.current_stream(1)))
        thread.start()
        thread.join()
    assert seen == [torch.sim.default_stream(1)]
    assert torch.sim.current_device() == 0


def test_a_stream_is_a_context_manager_itself(sim) -> None:
    side = torch.sim.Stream()
    with side:
        assert torch.sim.current_stream() == side
    assert torch.sim.current_stream() == torch.sim.default_stream()


def test_generic_streams_are_the_same_streams(sim) -> None:
    side = torch.Stream("sim")
    with torch.sim.stream(side):
        assert torch.accelerator.current_stream() == side


def test_event_timing_reads_the_virtual_clock(simulate) -> None:
    simulate("rtx4090", overrides={"launch_seconds": 1e-9, "kernel_floor_seconds": 1e-9})
    a = torch.zeros(1024, 1024, device="sim")
    begin, end = (torch.sim.Event(enable_timing=True) for _ in range(2))
    torch.sim.synchronize()
    begin.record()
    a @ a
    end.record()
    end.synchronize()
    flops = 2 * 1024**3
    peak = torch.sim.get_device_properties().figures["flops"]["float32"]
    assert begin.elapsed_time(end) == pytest.approx(1e3 * flops / peak, rel=0.02)


def test_virtual_time_is_the_same_in_every_run(simulate) -> None:
    clocks = set()
    for _ in range(3):
        sim = simulate()
        x = torch.ones(64, 64, device="sim")
        for _ in range(10):
            x = x @ x / 64
        x.sum().item()
        clocks.add((sim.clock(), sim.host_clock()))
        del x
    assert len(clocks) == 1


def test_a_pinned_copy_returns_before_it_is_done(sim) -> None:
    host = torch.ones(WEIGHT).pin_memory()
    device = torch.empty(WEIGHT, device="sim")
    before = sim.host_clock()
    device.copy_(host, non_blocking=True)
    issued = sim.host_clock()
    torch.sim.synchronize()
    link = torch.sim.get_device_properties().figures["h2d_bytes_per_second"]
    assert issued - before < 4 * WEIGHT / link / 4
    assert sim.clock() - before >= 4 * WEIGHT / link
    assert torch.equal(device.cpu(), host)


def test_a_pageable_copy_blocks_the_host(sim) -> None:
    before = sim.host_clock()
    torch.ones(WEIGHT).to("sim", non_blocking=True)
    pageable = torch.sim.get_device_properties().figures["pageable_bytes_per_second"]
    assert sim.host_clock() - before >= 4 * WEIGHT / pageable
    assert sim.stats()["pageable_copies"] == 1


def copy_and_use(wait: bool) -> torch.Tensor:
    host = torch.ones(WEIGHT).pin_memory()
    side = torch.sim.Stream()
    with torch.sim.stream(side):
        weight = host.to("sim", non_blocking=True)
        ready = side.record_event()
    if wait:
        torch.sim.current_stream().wait_event(ready)
    result = weight * 2
    weight.record_stream(torch.sim.current_stream())
    return result


def test_a_waited_copy_is_no_race(sim) -> None:
    assert torch.equal(copy_and_use(wait=True).cpu(), torch.full((WEIGHT,), 2.0))
    assert sim.races() == []


def test_a_missing_wait_raises_with_both_names_and_the_remedy(sim) -> None:
    with pytest.raises(RuntimeError, match=r"aten::mul"):
        copy_and_use(wait=False)
    (race,) = sim.races()
    assert (race.first.op, race.first.write) == ("aten::copy_", True)
    assert (race.second.op, race.second.write) == ("aten::mul.out", False)
    assert race.first.stream != race.second.stream
    assert race.end - race.begin == 4 * WEIGHT
    assert "wait" in race.missing_wait


def test_a_missing_wait_is_recorded_and_reads_poison(simulate) -> None:
    sim = simulate(checker="record")
    assert torch.isnan(copy_and_use(wait=False)).all()
    assert len(sim.races()) >= 1


def test_after_a_race_the_device_works_on(sim) -> None:
    with pytest.raises(RuntimeError):
        copy_and_use(wait=False)
    assert torch.equal(copy_and_use(wait=True).cpu(), torch.full((WEIGHT,), 2.0))


def test_backward_runs_on_the_streams_of_forward(sim) -> None:
    x = torch.ones(8, device="sim", requires_grad=True)
    side = torch.sim.Stream()
    side.wait_stream(torch.sim.current_stream())
    with torch.sim.stream(side):
        loss = (x * 3).sum()
    torch.sim.current_stream().wait_stream(side)
    loss.backward()
    assert torch.equal(x.grad.cpu(), torch.full((8,), 3.0))
    assert sim.races() == []


def test_timeline_has_kernels_and_copies(sim) -> None:
    sim.record_timeline()
    x = torch.ones(16).to("sim")
    x + x
    sim.record_timeline(False)
    kinds = {(span.kind, span.name) for span in sim.timeline()}
    assert ("h2d", "aten::copy_") in kinds
    assert ("kernel", "aten::add.out") in kinds
    assert all(span.end >= span.begin for span in sim.timeline())
