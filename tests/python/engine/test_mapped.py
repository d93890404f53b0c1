"""disk="mapped": weights of the cpu device that are private mappings of their files."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from shapes import assert_same_bits
from torch import nn

import noria
from noria import _C
from noria.loading import empty_weights

WIDTH = 64


def chain() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(5))).eval().requires_grad_(False)


def checkpoint(folder: Path, *, aligned: bool) -> Path:
    """The chain's weights, with the data at a multiple of 64 bytes in the file or 8 bytes beside one."""
    path = folder / "model.safetensors"
    for padding in range(64):
        save_file(dict(chain().state_dict()), path, metadata={"padding": "x" * padding})
        start = 8 + int.from_bytes(path.read_bytes()[:8], "little")
        if start % 64 == (0 if aligned else 8):
            return path
    raise AssertionError("no padding gives that alignment")


def load(path: Path, **options) -> tuple[nn.Sequential, noria.Offload]:
    with empty_weights():
        model = chain()
    return model, noria.load(model, path, "cpu", disk="mapped", **options)


def mapped_names(model: nn.Module) -> set[str]:
    return {name for name, tensor in model.state_dict().items() if _C.is_mapped(tensor)}


def test_aligned_weights_are_mapped_and_right(tmp_path: Path) -> None:
    expected = chain()
    model, handle = load(checkpoint(tmp_path, aligned=True), budget="64KiB")
    assert mapped_names(model) == set(model.state_dict())
    assert all(tensor.data_ptr() % 64 == 0 for tensor in model.state_dict().values())
    x = torch.randn(3, WIDTH)
    for _ in range(3):
        assert_same_bits(model(x), expected(x))
    status = handle.status()
    assert {group["tier"] for group in status.groups if group["bytes"]} == {"mapped"}
    assert status.weights_bytes == status.disk_bytes == sum(tensor.nbytes for tensor in model.state_dict().values())


def test_unaligned_weights_are_streamed_and_right(tmp_path: Path) -> None:
    expected = chain()
    model, handle = load(checkpoint(tmp_path, aligned=False), budget="64KiB")
    assert mapped_names(model) == set()
    x = torch.randn(3, WIDTH)
    for _ in range(3):
        assert_same_bits(model(x), expected(x))
    assert handle.status().loads > 0
    assert handle.status().peak_device_bytes <= 64 << 10


def test_a_write_stays_in_the_process(tmp_path: Path) -> None:
    path = checkpoint(tmp_path, aligned=True)
    before = path.read_bytes()
    model, handle = load(path, budget="64KiB")
    weight = model[2].weight
    weight.mul_(2)
    assert path.read_bytes() == before
    assert_same_bits(weight, chain()[2].weight * 2)
    copied = copy.deepcopy(model)
    handle.remove()
    assert model[2].weight is weight
    assert mapped_names(model) == mapped_names(copied) == set()
    assert_same_bits(weight, chain()[2].weight * 2)
    assert_same_bits(copied[2].weight, chain()[2].weight * 2)
    path.unlink()
    assert_same_bits(model[0].weight, chain()[0].weight)


def test_a_model_in_memory_gives_its_memory_up_and_keeps_what_differs(tmp_path: Path) -> None:
    from transformers import BertConfig, BertModel

    torch.manual_seed(0)
    config = BertConfig(vocab_size=304, hidden_size=64, num_hidden_layers=2, num_attention_heads=4)
    BertModel(config).eval().save_pretrained(tmp_path)
    (shard,) = tmp_path.glob("*.safetensors")
    start = 8 + int.from_bytes(shard.read_bytes()[:8], "little")
    model = BertModel.from_pretrained(tmp_path).eval().requires_grad_(False)
    resident = copy.deepcopy(model)
    for one in (model, resident):
        one.encoder.layer[1].output.dense.weight.data = one.encoder.layer[1].output.dense.weight * 2
    tied = list(model.parameters())
    noria.offload(model, "cpu", budget="1MiB", disk="mapped")
    assert list(model.parameters()) == tied, "the same objects"
    tokens = torch.arange(24).reshape(2, 12)
    for _ in range(2):
        assert_same_bits(model(tokens).last_hidden_state, resident(tokens).last_hidden_state)
    names = mapped_names(model)
    assert "encoder.layer.1.output.dense.weight" not in names
    assert bool(names) == (start % 64 == 0)


def test_tied_weights_are_mapped_once(tmp_path: Path) -> None:
    path = checkpoint(tmp_path, aligned=True)
    with empty_weights():
        model = chain()
        model[1] = model[0]
    handle = noria.load(model, path, "cpu", disk="mapped", budget="64KiB")
    assert model[1].weight is model[0].weight
    assert handle.status().weights_bytes == 4 * WIDTH * (WIDTH + 1) * 4
    x = torch.randn(3, WIDTH)
    expected = chain()
    expected[1] = expected[0]
    assert_same_bits(model(x), expected(x))


def test_a_failing_call_maps_nothing(tmp_path: Path) -> None:
    path = checkpoint(tmp_path, aligned=True)
    with empty_weights():
        model = nn.Sequential(*chain(), nn.Linear(WIDTH, WIDTH))  # the last one is not in the file
    with pytest.raises(noria.IntegrityError, match="the checkpoint has no"):
        noria.load(model, path, "cpu", disk="mapped", budget="64KiB")
    assert all(parameter.is_meta for parameter in model.parameters())


def test_other_devices_read_the_files_instead(sim, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="disk='checkpoint'"):
        noria.offload(chain(), "sim", budget="64KiB", disk="mapped")
