"""Tensors of the simulated device behave as those of a real accelerator."""

from __future__ import annotations

import copy
import io
import pickle

import pytest
import torch


def test_views_share_memory_and_move_no_bytes(sim) -> None:
    x = torch.arange(12.0, device="sim").reshape(3, 4)
    before = sim.stats()["kernels"]
    views = [x.t(), x[1], x[:, ::2], x.view(12), x.expand(2, 3, 4), x.unfold(1, 2, 1), x.diagonal(), x.unsqueeze(0)]
    assert sim.stats()["kernels"] == before
    x.zero_()
    assert all(view.abs().sum().item() == 0.0 for view in views)


def test_complex_views(sim) -> None:
    z = torch.tensor([1 + 2j, 3 - 4j], device="sim")
    assert torch.view_as_real(z).cpu().tolist() == [[1.0, 2.0], [3.0, -4.0]]
    assert z.conj().is_conj()
    assert torch.equal(z.conj().cpu().resolve_conj(), torch.tensor([1 - 2j, 3 + 4j]))
    assert torch.equal(z.conj().imag.cpu(), torch.tensor([-2.0, 4.0]))
    assert torch.equal((z.conj() @ z).cpu(), torch.tensor(30 + 0j))


@pytest.mark.parametrize("size", [0, 3, 100])
def test_out_operand_is_resized_in_place(sim, size: int) -> None:
    out = torch.empty(size, device="sim")
    storage = out.untyped_storage()
    torch.arange(5.0, out=out.resize_(0))
    assert out.device.type == "sim"
    assert out.cpu().tolist() == [0.0, 1.0, 2.0, 3.0, 4.0]
    assert out.untyped_storage()._cdata == storage._cdata


def test_shapes_that_depend_on_data(sim) -> None:
    x = torch.tensor([0, 3, 0, 5, 3], device="sim")
    assert x.nonzero().flatten().cpu().tolist() == [1, 3, 4]
    assert x.unique().cpu().tolist() == [0, 3, 5]
    assert x[x > 2].cpu().tolist() == [3, 5, 3]


def test_operands_on_two_devices_raise_as_on_cuda(simulate) -> None:
    simulate(devices=2)
    x, weight = torch.ones(2, 2, device="sim"), torch.ones(2, 2)
    for wrong in (weight, weight.to("sim:1")):
        for operation in (torch.mm, torch.add, lambda a, b: torch.cat([a, b]), torch.nn.functional.linear):
            with pytest.raises(RuntimeError, match="Expected all tensors to be on the same device"):
                operation(x, wrong)
    with pytest.raises(RuntimeError, match="sim:0 and cpu"):
        weight.add_(x)
    assert (x + torch.tensor(2.0)).sum().item() == 12.0
    assert x[torch.tensor([1, 0])].shape == (2, 2)


def test_parameter_data_moves_between_devices(sim) -> None:
    parameter = torch.nn.Parameter(torch.ones(3))
    parameter.data = parameter.data.to("sim")
    assert parameter.device.type == "sim"
    parameter.data = parameter.data.cpu()
    assert parameter.device.type == "cpu"


def test_blocking_copies_convert_on_the_host_and_others_on_the_device(sim) -> None:
    host = torch.arange(1000.0).pin_memory()
    blocking = torch.empty(1000, dtype=torch.bfloat16, device="sim")
    blocking.copy_(host)
    assert sim.stats()["bytes_h2d"] == 2000
    behind = torch.empty(1000, dtype=torch.bfloat16, device="sim")
    behind.copy_(host, non_blocking=True)
    assert sim.stats()["bytes_h2d"] == 2000 + 4000
    assert torch.equal(blocking.cpu(), behind.cpu())


def test_strided_copies_keep_every_element(simulate) -> None:
    simulate(devices=2)
    source = torch.arange(24.0).reshape(4, 6)
    for origin in (source, source.to("sim"), source.to("sim:1")):
        target = torch.zeros(6, 4, device="sim").t()
        target.copy_(origin)
        assert torch.equal(target.cpu(), source)
        row = torch.zeros(2, 4, 6, device="sim", dtype=torch.int64)
        row.copy_(origin)
        assert torch.equal(row.cpu(), source.long().expand(2, 4, 6))


def test_copies_between_devices_wait_for_each_other(simulate) -> None:
    sim = simulate(devices=2)
    x = torch.ones(1000, device="sim:0") * 3
    y = x.to("sim:1") + 1
    assert torch.equal(y.cpu(), torch.full((1000,), 4.0))
    assert sim.races() == []


def test_tensors_are_saved_loaded_pickled_and_copied(sim) -> None:
    x = torch.arange(6.0, device="sim")
    file = io.BytesIO()
    torch.save({"x": x, "view": x[2:]}, file)
    for location, kind in ((None, "sim"), ("cpu", "cpu"), ("sim:0", "sim")):
        file.seek(0)
        loaded = torch.load(file, map_location=location)
        assert loaded["x"].device.type == kind
        assert torch.equal(loaded["x"].cpu(), x.cpu())
        assert loaded["view"].untyped_storage()._cdata == loaded["x"].untyped_storage()._cdata
    for twin in (pickle.loads(pickle.dumps(x)), copy.deepcopy(x), x.clone()):
        assert twin.device == x.device
        assert torch.equal(twin, x)
        assert twin.data_ptr() != x.data_ptr()


def test_autocast_casts_as_on_cuda(sim) -> None:
    x = torch.ones(4, 4, device="sim")
    with torch.autocast("sim", dtype=torch.bfloat16):
        assert (x @ x).dtype == torch.bfloat16
        assert torch.nn.functional.softmax((x @ x), dim=0).dtype == torch.float32
    assert (x @ x).dtype == torch.float32


def test_the_profiler_shows_operators(sim) -> None:
    x = torch.ones(4, 4, device="sim")
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        torch.mm(x, x)
    names = {event.key for event in profile.key_averages()}
    assert "aten::mm" in names


def test_device_module_methods_exist(sim) -> None:
    assert torch.ones(1).sim().is_sim
    assert torch.nn.Linear(2, 2).sim().weight.device.type == "sim"
    assert torch.get_device_module("sim") is torch.sim
    assert torch.accelerator.current_accelerator() == torch.device("sim")
