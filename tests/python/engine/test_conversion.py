"""Checkpoints in another element type than the model: converted while they are read."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from shapes import assert_same_bits
from torch import nn

import noria
from noria.loading import empty_weights

TYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
WIDTH = 64


def assert_same_values(actual: torch.Tensor, expected: torch.Tensor, name: str) -> None:
    """Equal to the last bit, where not-a-number equals not-a-number: its bits say nothing."""
    torch.testing.assert_close(actual, expected, rtol=0, atol=0, equal_nan=True, msg=name)
    assert torch.equal(actual.signbit() & ~actual.isnan(), expected.signbit() & ~expected.isnan()), name


def chain() -> nn.Sequential:
    return nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(5))).eval().requires_grad_(False)


def awkward_values(shape: torch.Size, seed: int) -> torch.Tensor:
    """Values that rounding, overflow, underflow and special numbers treat differently, in float64."""
    values = torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    special = [0.0, -0.0, float("inf"), -float("inf"), float("nan"), 1e-45, 6e-8, 65504.0, 65520.0, 1e39, 1 + 2**-9]
    flat = values.view(-1)
    flat[: len(special)] = torch.tensor(special, dtype=torch.float64)
    flat[len(special) : len(special) + 32] *= 2.0 ** torch.arange(-30, 2, dtype=torch.float64)
    return values


def checkpoint(folder: Path, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """Written in `dtype`; returns what was written."""
    tensors = {
        name: awkward_values(tensor.shape, seed).to(dtype)
        for seed, (name, tensor) in enumerate(chain().state_dict().items())
    }
    save_file(tensors, folder / "model.safetensors")
    return tensors


@pytest.mark.parametrize("stored", TYPES, ids=str)
@pytest.mark.parametrize("wanted", TYPES, ids=str)
@pytest.mark.parametrize("host_budget", [None, "1GiB"])
def test_every_value_is_what_to_gives(device, tmp_path: Path, stored, wanted, host_budget) -> None:
    written = checkpoint(tmp_path, stored)
    with empty_weights():
        model = chain().to(wanted)
    layer = WIDTH * (WIDTH + 1) * torch.finfo(wanted).bits // 8
    handle = noria.load(model, tmp_path, device, budget=2 * layer + 2048, granularity="leaf", host_budget=host_budget)
    for _ in range(2):
        for name, parameter in model.named_parameters():
            assert parameter.dtype == wanted
            assert_same_values(parameter.cpu(), written[name].to(wanted), name)
    assert handle.status().peak_device_bytes <= 2 * layer + 2048
    state = model.state_dict()
    handle.remove()
    for name, tensor in written.items():
        assert_same_values(state[name], tensor.to(wanted), name)
        assert_same_values(model.state_dict()[name], tensor.to(wanted), name)


def test_a_written_weight_is_kept_in_the_models_type(device, tmp_path: Path) -> None:
    written = checkpoint(tmp_path, torch.float32)
    with empty_weights():
        model = chain().to(torch.bfloat16)
    noria.load(model, tmp_path, device, budget=20_000, granularity="leaf")
    with torch.no_grad():
        model[2].weight.fill_(3)
        for _ in range(2):
            for index in (0, 1, 2, 3, 4):
                model[index](torch.zeros(1, WIDTH, dtype=torch.bfloat16, device=device))
    assert_same_bits(model[2].weight.cpu(), torch.full((WIDTH, WIDTH), 3, dtype=torch.bfloat16))
    assert_same_values(model[3].weight.cpu(), written["3.weight"].to(torch.bfloat16), "3.weight")


def test_large_tensors_across_many_reads(device, tmp_path: Path) -> None:
    """Tensors larger than a read of 4 MiB, beside an odd number of bytes that shifts them in the file."""
    torch.manual_seed(1)
    tensors = {"a": torch.randn(1500, 1001), "z.odd": torch.arange(3, dtype=torch.uint8), "b": torch.randn(1001, 1203)}
    save_file(tensors, tmp_path / "model.safetensors")

    class Large(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = nn.Parameter(torch.empty(1500, 1001, dtype=torch.bfloat16), requires_grad=False)
            self.b = nn.Parameter(torch.empty(1001, 1203, dtype=torch.bfloat16), requires_grad=False)

    with empty_weights():
        model = Large()
    noria.load(model, tmp_path, device, budget="8MiB")
    for name in ("a", "b"):
        assert_same_bits(getattr(model, name).cpu(), tensors[name].to(torch.bfloat16), name)


def test_a_tensor_that_is_not_aligned_in_its_file(device, tmp_path: Path) -> None:
    """Other writers do not pad: elements stand across the reader's chunks."""
    tensor = torch.randn(1100, 1100)
    data = b"\x07" + tensor.numpy().tobytes()
    header = (
        '{"byte":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},'
        f'"weight":{{"dtype":"F32","shape":[1100,1100],"data_offsets":[1,{len(data)}]}}}}'
    ).encode()
    header += b" " * (-len(header) % 8)
    (tmp_path / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + data)
    with empty_weights():
        model = nn.Linear(1100, 1100, bias=False, dtype=torch.float16).requires_grad_(False)
    noria.load(model, tmp_path, device, budget="3MiB")
    assert_same_bits(model.weight.cpu(), tensor.half())


def test_a_models_own_checkpoint_in_another_type_is_recognised(device, tmp_path: Path) -> None:
    from transformers import BertConfig, BertModel

    torch.manual_seed(0)
    config = BertConfig(vocab_size=300, hidden_size=64, num_hidden_layers=2, num_attention_heads=4)
    BertModel(config).eval().save_pretrained(tmp_path)
    model = BertModel.from_pretrained(tmp_path, dtype=torch.bfloat16).eval().requires_grad_(False)
    tokens = torch.arange(24, device=device).reshape(2, 12)
    resident = BertModel.from_pretrained(tmp_path, dtype=torch.bfloat16).eval().requires_grad_(False).to(device)
    with torch.no_grad():
        expected = resident(tokens).last_hidden_state
        handle = noria.offload(model, device, budget="1MiB", disk="checkpoint")
        assert handle.status().disk_bytes > 0.9 * sum(parameter.nbytes for parameter in model.parameters())
        for _ in range(2):
            assert_same_bits(model(tokens).last_hidden_state, expected)


def test_whole_numbers_are_not_converted(device, tmp_path: Path) -> None:
    save_file({"weight": torch.ones(4, 4, dtype=torch.int32)}, tmp_path / "model.safetensors")
    with empty_weights():
        model = nn.Linear(4, 4, bias=False).requires_grad_(False)
    with pytest.raises(noria.IntegrityError, match="only floating-point types are converted"):
        noria.load(model, tmp_path, device, budget="1MiB")


def test_tied_weights_stay_one_parameter(device, tmp_path: Path) -> None:
    """An optimizer would otherwise update their bytes twice."""

    def tied() -> nn.Module:
        model = nn.Sequential(nn.Embedding(16, WIDTH), nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 16, bias=False))
        model[2].weight = model[0].weight
        return model

    torch.manual_seed(0)
    resident = tied()
    tensors = dict(resident.state_dict())
    del tensors["2.weight"]
    save_file(tensors, tmp_path / "model.safetensors")
    resident.to(device)
    with empty_weights():
        model = tied()
    model[2].weight = model[0].weight
    handle = noria.load(model, tmp_path, device, budget=3 * 16 * WIDTH * 4 + WIDTH * (WIDTH + 1) * 4 + 2048)
    assert model[2].weight is model[0].weight
    assert len(list(model.parameters())) == len(list(resident.parameters()))
    optimizers = [torch.optim.AdamW(one.parameters(), lr=0.1, foreach=False) for one in (model, resident)]
    for _ in range(3):
        for one, optimizer in zip((model, resident), optimizers, strict=True):
            optimizer.zero_grad()
            one(torch.arange(8, device=device)).square().mean().backward()
            optimizer.step()
    handle.remove()
    assert model[2].weight is model[0].weight
    for name, tensor in resident.state_dict().items():
        assert_same_bits(model.state_dict()[name], tensor.cpu(), name)


def test_the_dtype_is_that_of_the_model(tmp_path: Path) -> None:
    checkpoint(tmp_path, torch.float32)
    with empty_weights():
        model = chain()
    with pytest.raises(TypeError, match="build it in the one you want"):
        noria.load(model, tmp_path, "cpu", budget="1MiB", dtype=torch.bfloat16)
