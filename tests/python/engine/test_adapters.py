"""Adapters of PEFT on a Diffusers model, changed while the model is offloaded."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import diffusers
import pytest
import torch
from pairs import Pair
from peft import LoraConfig
from shapes import Inputs, Shape, assert_same_bits, seeded
from torch import nn

import noria

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning:peft")


def flux(_seed: int) -> nn.Module:
    return diffusers.FluxTransformer2DModel(
        patch_size=1, in_channels=4, num_layers=2, num_single_layers=2, attention_head_dim=16, num_attention_heads=2,
        joint_attention_dim=32, pooled_projection_dim=32, axes_dims_rope=[4, 4, 8],
    ).eval()  # fmt: skip


def denoise(model: nn.Module, inputs: Inputs) -> torch.Tensor:
    sample: torch.Tensor = model(
        hidden_states=inputs.tensor(1, 16, 4),
        encoder_hidden_states=inputs.tensor(1, 8, 32),
        pooled_projections=inputs.tensor(1, 32),
        timestep=inputs.tensor(1).abs(),
        img_ids=inputs.tensor(16, 3),
        txt_ids=inputs.tensor(8, 3),
    ).sample
    return sample


FILE = {"prefix": None, "weight_name": "pytorch_lora_weights.safetensors"}
FLUX = Shape("Flux", seeded(flux), {"forward": denoise})


def config(rank: int, targets: tuple[str, ...] = ("to_q", "to_k", "to_v", "proj_out")) -> LoraConfig:
    return LoraConfig(r=rank, lora_alpha=rank, init_lora_weights=False, target_modules=list(targets))


@pytest.fixture(params=["modules", "ops"])
def pair(request: pytest.FixtureRequest, sim) -> Iterator[Pair]:
    """A Flux model under half of its weights."""
    pair = Pair(FLUX, torch.device("sim"))
    noria.offload(pair.offloaded, "sim", budget=pair.weights_bytes // 2, trigger=request.param)
    yield pair


def change(pair: Pair, what: Any, *arguments: Any, **keywords: Any) -> None:
    """The same call on both models, which draw the same random numbers; then they compute the same."""
    for model in (pair.resident, pair.offloaded):
        torch.manual_seed(7)
        getattr(model, what)(*arguments, **keywords)
    with torch.no_grad():
        pair.check(passes=2)


def test_adapters_come_mix_fuse_and_go(pair: Pair) -> None:
    change(pair, "add_adapter", config(4), "one")
    change(pair, "add_adapter", config(2, ("to_q", "proj_mlp")), "two")
    change(pair, "set_adapters", ["one", "two"], [0.7, 0.3])
    change(pair, "set_adapters", ["two"])
    change(pair, "disable_lora")
    change(pair, "enable_lora")
    change(pair, "fuse_lora", adapter_names=["one"])
    change(pair, "unfuse_lora")
    change(pair, "delete_adapters", "two")
    pair.check_state()
    change(pair, "unload_lora")
    pair.check_state()


def test_adapters_of_a_file_come_under_their_own_names(pair: Pair, tmp_path) -> None:
    source = flux(0)
    torch.manual_seed(3)
    source.add_adapter(config(4))
    source.save_lora_adapter(tmp_path)
    change(pair, "load_lora_adapter", str(tmp_path), **FILE, adapter_name="saved")
    pair.check_state()
    pair.offloaded.save_lora_adapter(tmp_path / "again", adapter_name="saved")
    again = flux(0)
    again.load_lora_adapter(str(tmp_path / "again"), **FILE)
    expected = [tensor for name, tensor in source.state_dict().items() if "lora" in name]
    assert len(expected) > 0
    assert_same_bits([tensor for name, tensor in again.state_dict().items() if "lora" in name], expected)


def test_an_adapter_that_does_not_fit_changes_nothing(pair: Pair, tmp_path) -> None:
    change(pair, "add_adapter", config(4), "one")
    wide = diffusers.FluxTransformer2DModel(**{**flux(0).config, "num_attention_heads": 4})
    wide.add_adapter(config(2))
    wide.save_lora_adapter(tmp_path)
    for model in (pair.resident, pair.offloaded):
        with pytest.raises(RuntimeError, match="size mismatch"):
            model.load_lora_adapter(str(tmp_path), **FILE, adapter_name="wide")
    with torch.no_grad():
        pair.check()


@pytest.mark.parametrize("checkpointing", [False, True], ids=["", "checkpointing"])
def test_training_an_adapter_over_a_frozen_base_gives_the_same_bits(pair: Pair, checkpointing: bool) -> None:
    """What Diffusers' training scripts do: the base frozen, a fresh adapter, AdamW over what needs gradients."""
    models = (pair.resident, pair.offloaded)
    optimizers = []
    for model in models:
        model.requires_grad_(False)
        torch.manual_seed(7)
        model.add_adapter(config(4))
        model.train()
        if checkpointing:
            model.enable_gradient_checkpointing()
        trained = [weight for weight in model.parameters() if weight.requires_grad]
        assert 0 < len(trained) < len(list(model.parameters()))
        optimizers.append(torch.optim.AdamW(trained, lr=1e-2))
    losses: list[list[torch.Tensor]] = [[], []]
    for number in range(20):
        for one, (model, optimizer) in enumerate(zip(models, optimizers, strict=True)):
            optimizer.zero_grad()
            loss = denoise(model, Inputs("sim", number)).square().mean()
            loss.backward()
            optimizer.step()
            losses[one].append(loss.detach())
    assert_same_bits(losses[1], losses[0])
    assert losses[0][-1] < losses[0][0]
    pair.check_state()


def test_a_copy_of_an_adapted_model_is_an_ordinary_one(pair: Pair) -> None:
    change(pair, "add_adapter", config(4))
    twin = copy.deepcopy(pair.offloaded)
    assert {tensor.device.type for tensor in twin.state_dict().values()} == {"cpu"}
    with torch.no_grad():
        pair.resident.to("cpu")
        assert_same_bits(denoise(twin, Inputs("cpu", 1)), denoise(pair.resident, Inputs("cpu", 1)))
