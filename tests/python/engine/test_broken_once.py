"""Faults that an attack on the engine found, one test each."""

from __future__ import annotations

import contextlib
import copy
import pickle
import threading
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from shapes import assert_same_bits
from torch import nn

import noria
from noria.loading import empty_weights

WIDTH = 32
LAYER = 4 * WIDTH * (WIDTH + 1) + 512


def chain(layers: int = 6, seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(layers))).requires_grad_(False).eval()


@torch.no_grad()
def test_a_resident_read_on_one_thread_stays_right_while_another_plans_anew(device: torch.device) -> None:
    model, resident = chain(), chain().to(device)
    handle = noria.offload(model, device, budget=4 * LAYER, granularity="leaf")
    x = torch.ones(3, WIDTH, device=device)
    expected = [F.linear(x, layer.weight).clone() for layer in resident]
    wrong: list[int] = []
    failures: list[BaseException] = []
    done = threading.Event()

    def read() -> None:
        try:
            while not done.is_set():
                for index, layer in enumerate(model):
                    try:
                        actual = F.linear(x, layer.weight)
                    except RuntimeError as error:
                        if not noria.is_evicted_error(error):
                            raise
                        continue  # refused for want of room beside the other thread; never wrong
                    if not torch.equal(actual, expected[index]):
                        wrong.append(index)
        except BaseException as error:
            failures.append(error)

    reader = threading.Thread(target=read)
    reader.start()
    try:
        for _ in range(15):
            for first in range(3):
                with handle.resident(model[first]):
                    for layer in model:
                        layer(x)
            handle.resize(5 * LAYER)
            model(x)
            handle.resize(4 * LAYER)
    finally:
        done.set()
        reader.join()
    assert failures == []
    assert wrong == []


@torch.no_grad()
def test_loading_takes_buffers_from_the_checkpoint_too(device: torch.device, tmp_path: Path) -> None:
    from safetensors.torch import save_file

    def network() -> nn.Sequential:
        return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH), nn.Linear(WIDTH, WIDTH))

    trained = network()
    trained.train()
    for seed in range(3):
        trained(torch.randn(8, WIDTH, generator=torch.Generator().manual_seed(seed)))
    trained.eval()
    save_file(trained.state_dict(), tmp_path / "model.safetensors")
    with empty_weights():
        model = network().eval()
    noria.load(model, tmp_path, device, budget="1MiB")
    for name, tensor in model.state_dict().items():
        assert_same_bits(tensor.cpu(), trained.state_dict()[name], name)
    x = torch.randn(2, WIDTH, device=device)
    assert_same_bits(model(x), trained.to(device)(x))


def test_a_weight_that_lies_otherwise_than_the_file_is_refused(device: torch.device, tmp_path: Path) -> None:
    from safetensors.torch import save_file

    save_file({"weight": torch.randn(4, 3, 3, 3), "bias": torch.zeros(4)}, tmp_path / "model.safetensors")
    model = nn.Conv2d(3, 4, 3, device="meta").to(memory_format=torch.channels_last)
    with pytest.raises(noria.IntegrityError, match="'weight' is not contiguous"):
        noria.load(model, tmp_path, device, budget="1MiB")


@torch.no_grad()
def test_modified_weights_are_read_back_whole_without_streams(simulate) -> None:
    simulate(streams=False)
    model, resident = chain(), chain()
    noria.offload(model, "sim", budget=2 * LAYER, pin=True)
    for one in (model, resident):
        for layer in one:
            layer.weight.mul_(1.5)
    wanted = resident.state_dict()
    for copied in (
        model.state_dict(),
        copy.deepcopy(model).state_dict(),
        pickle.loads(pickle.dumps(model)).state_dict(),
    ):
        for name, tensor in copied.items():
            assert_same_bits(tensor.clone(), wanted[name], name)


@torch.no_grad()
def test_a_refresh_inside_resident_ends_well(device: torch.device) -> None:
    model = chain()
    x = torch.ones(2, WIDTH, device=device)
    handle = noria.offload(model, device, budget=4 * LAYER, granularity="leaf")
    for seed in range(5):
        with handle.resident(model[1], model[2]):
            model[4] = chain(1, seed)[0]
            model(x)
    resident = copy.deepcopy(model).to(device)
    assert_same_bits(model(x), resident(x))


@torch.no_grad()
def test_who_holds_and_waits_is_not_waited_for(device: torch.device) -> None:
    model = chain()
    handle = noria.offload(model, device, budget=2 * LAYER, granularity="leaf")
    raised: list[BaseException] = []

    def needs_two() -> None:
        try:
            torch.equal(model[2].weight, model[3].weight)
        except RuntimeError as error:
            raised.append(error)

    with handle.resident(model[0]):
        worker = threading.Thread(target=needs_two, daemon=True)
        worker.start()
        worker.join(timeout=60)
        assert not worker.is_alive()
    assert len(raised) == 1
    assert noria.is_evicted_error(raised[0])


@torch.no_grad()
def test_a_second_call_that_fails_leaves_the_first_in_force(device: torch.device, tmp_path: Path) -> None:
    model = chain()
    x = torch.ones(2, WIDTH, device=device)
    first = noria.offload(model, device, budget=2 * LAYER, granularity="leaf")
    expected = model(x)
    (tmp_path / "file").write_text("in the way")
    for disk, error in (("checkpoint", ValueError), (tmp_path / "file", noria.StorageError)):
        with pytest.raises(error):
            noria.offload(model, device, budget=2 * LAYER, disk=disk)
        assert_same_bits(model(x), expected)
        assert first.status().budget_bytes == 2 * LAYER


@pytest.mark.parametrize("operation", ["resize", "resident"])
@torch.no_grad()
def test_after_a_copy_that_failed_the_next_calls_find_room(sim, operation: str, tmp_path: Path) -> None:
    x = torch.ones(2, WIDTH, device="sim")
    for number in range(1, 8):
        model = chain()
        handle = noria.offload(model, "sim", budget=3 * LAYER, granularity="leaf", disk=tmp_path)
        model(x)
        for layer in model:
            layer.weight.mul_(0.5)
        sim.inject("copy_error", after=number, sticky=False)
        with contextlib.suppress(RuntimeError):
            if operation == "resize":
                handle.resize(4 * LAYER)
            else:
                with handle.resident(model[1]):
                    model(x)
        sim.clear_injections()
        sim.clear_error()
        for _ in range(3):
            model(x)


def test_the_net_is_off_when_nothing_is_offloaded_any_more(fresh_python) -> None:
    script = """
        import torch, noria
        from torch import nn
        handle = noria.offload(nn.Linear(8, 8), "cpu", budget="1MiB")
        from noria import _C
        print(_C.net_engines())
        handle.remove()
        print(_C.net_engines())
    """
    assert fresh_python(script).split() == ["1", "0"]
