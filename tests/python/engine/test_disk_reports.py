"""What users of disk offloading reported, one test each; see test_offload_reports.py."""

from __future__ import annotations

import copy
import gc
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from offloaders import Offloader
from pairs import Pair
from reports import BLOCKS, EITHER, LEAVES, model_of, offloaded, report
from shapes import WIDTH, Inputs, Shape, assert_same_bits
from torch import nn

STREAMED = pytest.mark.parametrize("use_stream", [False, True], ids=["", "stream"])


class Chain(nn.Module):
    """Layers of a MiB each."""

    def __init__(self, seed: int = 0, layers: int = 6) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.layers = nn.ModuleList(nn.Linear(512, 512, bias=False) for _ in range(layers))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return x


LAYER_BYTES = 512 * 512 * 4
CHAIN = model_of("chain", Chain, 3, 512)


@report("124", "diffusers#11767", "two models made one after the other never share a file")
@EITHER
def test_a_model_made_where_another_was(offloader: Offloader, sim, level: dict, tmp_path: Path) -> None:
    for seed in range(6):
        torch.manual_seed(seed)
        pair = Pair(Shape("chain", lambda _, seed=seed: Chain(seed), CHAIN.calls), torch.device("sim"))
        offloader(pair.offloaded, offload_to_disk_path=str(tmp_path), **level)
        pair.check(passes=2)
        del pair
        gc.collect()  # the next model gets the ids of this one


def bytes_read() -> int:
    """Of this process, from files, as the system counts calls of read; not what was mapped."""
    fields = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
    return int(fields["rchar"])


@report("125", "diffusers#13851", "a group is read once per load, not twice")
@STREAMED
def test_a_group_is_read_once(offloader: Offloader, sim, use_stream: bool, tmp_path: Path, monkeypatch) -> None:
    import safetensors.torch

    reads = 0
    original = safetensors.torch.load_file

    def counting(path: Any, *args: Any, **kwargs: Any) -> Any:
        nonlocal reads
        reads += os.path.getsize(path)
        return original(path, *args, **kwargs)

    monkeypatch.setattr(safetensors.torch, "load_file", counting)  # it maps the file: the system counts nothing
    pair = offloaded(offloader, CHAIN, use_stream=use_stream, offload_to_disk_path=str(tmp_path), **BLOCKS)
    pair.check(passes=2)
    before = reads + bytes_read()
    with torch.no_grad():
        pair.offloaded(Inputs(pair.device, 0).tensor(3, 512))
    torch.sim.synchronize()
    assert reads + bytes_read() - before <= 7.5 * LAYER_BYTES, "six layers, and the beginning of the next pass"


@report("127", "compressed-tensors#602", "one folder, and nothing of it is left but what later runs use")
def test_one_folder_holds_everything(offloader: Offloader, sim, tmp_path: Path) -> None:
    pair = offloaded(offloader, CHAIN, offload_to_disk_path=str(tmp_path), **BLOCKS)
    pair.check(passes=1)
    held = sum(path.stat().st_size for path in tmp_path.rglob("*") if path.is_file())
    assert held <= 1.05 * 6 * LAYER_BYTES
    files = {path for path in tmp_path.rglob("*") if path.is_file()}
    pair.offloaded = None
    gc.collect()
    again = offloaded(offloader, CHAIN, offload_to_disk_path=str(tmp_path), **BLOCKS)
    again.check(passes=1)
    assert {path for path in tmp_path.rglob("*") if path.is_file()} == files


@report("128, L4", "transformers#47333, #46902", "state_dict of a model on disk holds real weights, and its buffers")
@EITHER
def test_saving_writes_the_real_weights(offloader: Offloader, sim, level: dict, tmp_path: Path) -> None:
    pair = offloaded(offloader, "T9", offload_to_disk_path=str(tmp_path), **level)
    pair.check(passes=1)
    file = tmp_path / "saved.pt"
    torch.save(pair.offloaded.state_dict(), file)
    saved = torch.load(file, map_location="cpu")
    expected = pair.resident.state_dict()
    assert list(saved) == list(expected)
    for name, tensor in expected.items():
        assert_same_bits(saved[name], tensor.cpu(), name)


@report("L5", "components of a pipeline share one folder", "each keeps its own weights")
@EITHER
def test_components_with_the_same_names_share_a_folder(offloader: Offloader, sim, level: dict, tmp_path: Path) -> None:
    pairs = [
        Pair(Shape("chain", lambda _, seed=seed: Chain(seed), CHAIN.calls), torch.device("sim")) for seed in (1, 2)
    ]
    for pair in pairs:
        offloader(pair.offloaded, offload_to_disk_path=str(tmp_path), **level)
    for pair in pairs:
        pair.check(passes=2)


@report("L7", "a crash while writing leaves a short file", "later runs do not trust it")
@pytest.mark.parametrize("kept", [0.0, 0.5, 0.99])
def test_a_short_file_is_not_trusted(offloader: Offloader, sim, kept: float, tmp_path: Path) -> None:
    pair = offloaded(offloader, CHAIN, offload_to_disk_path=str(tmp_path), **BLOCKS)
    pair.check(passes=1)
    pair.offloaded = None
    gc.collect()
    for path in tmp_path.rglob("*"):
        if path.is_file() and path.suffix != ".json" and path.stat().st_size > 0:
            os.truncate(path, int(kept * path.stat().st_size))
    again = offloaded(offloader, CHAIN, offload_to_disk_path=str(tmp_path), **BLOCKS)
    again.check(passes=2)


class Strided(nn.Module):
    """A convolution in channels_last, a transposed matrix, and two parameters over one storage."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(4, WIDTH, 3, padding=1).to(memory_format=torch.channels_last)
        self.mixed = nn.Linear(WIDTH, WIDTH, bias=False)
        self.mixed.weight = nn.Parameter(torch.randn(WIDTH, WIDTH).t())
        both = torch.randn(2, WIDTH)
        self.scale = nn.Parameter(both[0])
        self.shift = nn.Parameter(both[1])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden: torch.Tensor = self.mixed(self.conv(x).mean((2, 3)))
        return hidden * self.scale + self.shift


@report("L8", "channels_last and shared storages", "their bytes and strides come back from disk")
@EITHER
def test_strides_and_shared_storages(offloader: Offloader, sim, level: dict, tmp_path: Path) -> None:
    shape = model_of("strided", Strided, 2, 4, 6, 6)
    pair = offloaded(offloader, shape, offload_to_disk_path=str(tmp_path), **level)
    pair.check(passes=3)
    expected = {name: tensor.stride() for name, tensor in shape.build(0).named_parameters()}
    assert {name: tensor.stride() for name, tensor in pair.offloaded.named_parameters()} == expected


@report("L10", "disk with a stream", "loads go through page-locked memory that is used again, and pin nothing")
def test_loads_pin_nothing_new(offloader: Offloader, sim, tmp_path: Path, monkeypatch) -> None:
    pair = offloaded(offloader, CHAIN, use_stream=True, offload_to_disk_path=str(tmp_path), **BLOCKS)
    pair.check(passes=2)
    pinned = 0
    original = torch.Tensor.pin_memory

    def counting(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        nonlocal pinned
        pinned += 1
        return original(tensor, *args, **kwargs)

    monkeypatch.setattr(torch.Tensor, "pin_memory", counting)
    before = sim.stats()
    pair.check(passes=2)
    assert pinned == 0
    assert sim.stats()["pageable_copies"] - before["pageable_copies"] <= 2 * 2 + 2 * 2, "inputs and outputs alone"


def test_the_rows_hold_for_leaves_on_the_cpu_too(tmp_path: Path) -> None:
    """Ours alone: the cpu as onload device, with the same folder for both."""
    import noria

    for seed in (1, 2, 1):
        model = Chain(seed)
        expected = copy.deepcopy(model)
        noria.apply_group_offloading(model, "cpu", offload_to_disk_path=str(tmp_path), **LEAVES)
        x = torch.randn(3, 512)
        for _ in range(2):
            assert_same_bits(model(x), expected(x))
