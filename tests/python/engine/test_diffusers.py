"""Models of Diffusers and transformers, tiny: the same bits offloaded as resident on the simulated device."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from pairs import Pair
from shapes import Inputs, Shape, assert_same_bits, seeded
from torch import nn

import noria

diffusers = pytest.importorskip("diffusers")
transformers = pytest.importorskip("transformers")


def flux(_seed: int) -> nn.Module:
    return diffusers.FluxTransformer2DModel(
        patch_size=1, in_channels=4, num_layers=2, num_single_layers=2, attention_head_dim=16, num_attention_heads=2,
        joint_attention_dim=32, pooled_projection_dim=32, guidance_embeds=True, axes_dims_rope=(4, 4, 8),
    )  # fmt: skip


def call_flux(model: nn.Module, inputs: Inputs) -> Any:
    positions = torch.arange(16)
    return model(
        hidden_states=inputs.tensor(1, 16, 4),
        encoder_hidden_states=inputs.tensor(1, 5, 32),
        pooled_projections=inputs.tensor(1, 32),
        timestep=torch.tensor([0.5], device=inputs.device),
        guidance=torch.tensor([3.5], device=inputs.device),
        img_ids=torch.stack([positions * 0, positions // 4, positions % 4], -1).float().to(inputs.device),
        txt_ids=torch.zeros(5, 3, device=inputs.device),
    ).sample


def wan(_seed: int) -> nn.Module:
    return diffusers.WanTransformer3DModel(
        patch_size=(1, 2, 2), num_attention_heads=2, attention_head_dim=12, in_channels=4, out_channels=4, text_dim=16,
        freq_dim=32, ffn_dim=32, num_layers=3, cross_attn_norm=True, rope_max_seq_len=32,
    )  # fmt: skip


def call_wan(model: nn.Module, inputs: Inputs) -> Any:
    return model(
        hidden_states=inputs.tensor(1, 4, 2, 4, 4),
        timestep=torch.tensor([500], device=inputs.device),
        encoder_hidden_states=inputs.tensor(1, 6, 16),
    ).sample


def sd3(_seed: int) -> nn.Module:
    return diffusers.SD3Transformer2DModel(
        sample_size=8, patch_size=1, in_channels=4, num_layers=3, attention_head_dim=8, num_attention_heads=4,
        caption_projection_dim=32, joint_attention_dim=32, pooled_projection_dim=64, out_channels=4, qk_norm="rms_norm",
    )  # fmt: skip


def call_sd3(model: nn.Module, inputs: Inputs) -> Any:
    return model(
        hidden_states=inputs.tensor(1, 4, 8, 8),
        encoder_hidden_states=inputs.tensor(1, 6, 32),
        pooled_projections=inputs.tensor(1, 64),
        timestep=torch.tensor([500.0], device=inputs.device),
    ).sample


def unet(_seed: int) -> nn.Module:
    return diffusers.UNet2DConditionModel(
        block_out_channels=(4, 8), norm_num_groups=4, layers_per_block=1, sample_size=8, cross_attention_dim=8,
        attention_head_dim=2, down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"),
        up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"),
    )  # fmt: skip


def call_unet(model: nn.Module, inputs: Inputs) -> Any:
    return model(inputs.tensor(1, 4, 8, 8), 10, encoder_hidden_states=inputs.tensor(1, 5, 8)).sample


def autoencoder(_seed: int) -> nn.Module:
    return diffusers.AutoencoderKL(
        block_out_channels=(4, 8), norm_num_groups=4, sample_size=16, latent_channels=4,
        down_block_types=("DownEncoderBlock2D",) * 2, up_block_types=("UpDecoderBlock2D",) * 2,
    )  # fmt: skip


def decode_in_tiles(model: nn.Module, inputs: Inputs) -> Any:
    model.enable_tiling()
    try:
        return model.decode(inputs.tensor(1, 4, 12, 12)).sample
    finally:
        model.disable_tiling()


def t5(_seed: int) -> nn.Module:
    config = transformers.T5Config(vocab_size=32, d_model=16, d_kv=8, d_ff=32, num_layers=3, num_heads=2)
    return transformers.T5EncoderModel(config).eval()


def clip(_seed: int) -> nn.Module:
    config = transformers.CLIPTextConfig(
        vocab_size=32, hidden_size=16, intermediate_size=32, num_hidden_layers=3, num_attention_heads=2,
        max_position_embeddings=8, projection_dim=16, eos_token_id=31, bos_token_id=0, pad_token_id=1,
    )  # fmt: skip
    return transformers.CLIPTextModel(config).eval()


def call_encoder(model: nn.Module, inputs: Inputs) -> Any:
    return list(model(inputs.whole_numbers(32, 2, 7), output_hidden_states=True).values())


MODELS = [
    Shape("Flux", seeded(flux), {"forward": call_flux}),
    Shape("Wan", seeded(wan), {"forward": call_wan}),
    Shape("SD3", seeded(sd3), {"forward": call_sd3}),
    Shape("UNet", seeded(unet), {"forward": call_unet}),
    Shape(
        "AutoencoderKL",
        seeded(autoencoder),
        {
            "encode": lambda model, inputs: model.encode(inputs.tensor(1, 3, 16, 16)).latent_dist.mean,
            "decode": lambda model, inputs: model.decode(inputs.tensor(1, 4, 8, 8)).sample,
            "decode in tiles": decode_in_tiles,
            "forward": lambda model, inputs: model(inputs.tensor(1, 3, 16, 16)).sample,
        },
    ),
    Shape("T5", seeded(t5), {"forward": call_encoder}),
    Shape("CLIP", seeded(clip), {"forward": call_encoder}),
]


@pytest.fixture(params=MODELS, ids=str)
def pair(request: pytest.FixtureRequest, sim) -> Iterator[Pair]:
    with torch.no_grad():
        yield Pair(request.param, torch.device("sim"))


@pytest.mark.parametrize("use_stream", [False, True], ids=["", "stream"])
@pytest.mark.parametrize("level", ["leaf_level", "block_level"])
def test_group_offloading_gives_the_same_bits(pair: Pair, level: str, use_stream: bool) -> None:
    blocks = 1 if level == "block_level" else None
    noria.apply_group_offloading(
        pair.offloaded, "sim", offload_type=level, num_blocks_per_group=blocks, use_stream=use_stream
    )
    pair.check()
    pair.check_state()


@pytest.mark.parametrize("share", [0.0, 0.4])
@pytest.mark.parametrize("granularity", ["leaf", "block"])
def test_a_budget_gives_the_same_bits(pair: Pair, granularity: str, share: float) -> None:
    budget = pair.smallest_budget(granularity=granularity) + int(share * pair.weights_bytes)
    handle = noria.offload(pair.offloaded, "sim", budget=budget, granularity=granularity, verify=True)
    pair.check()
    assert handle.status().peak_device_bytes <= budget


def test_save_pretrained_writes_the_weights(pair: Pair, tmp_path: Path) -> None:
    noria.apply_group_offloading(pair.offloaded, "sim", offload_type="leaf_level", use_stream=True)
    pair.check(passes=1)
    pair.offloaded.save_pretrained(tmp_path)
    again = type(pair.offloaded).from_pretrained(tmp_path)
    expected = pair.resident.state_dict()
    for name, tensor in again.state_dict().items():
        assert_same_bits(tensor, expected[name], name)


def test_a_loaded_model_is_offloaded_and_its_device_is_the_onload_device(sim, tmp_path: Path) -> None:
    shape = next(model for model in MODELS if model.name == "Flux")
    shape.build(0).save_pretrained(tmp_path)
    pair = Pair(shape, torch.device("sim"))
    pair.offloaded = diffusers.FluxTransformer2DModel.from_pretrained(tmp_path)
    noria.apply_group_offloading(pair.offloaded, "sim", num_blocks_per_group=1, use_stream=True)
    assert pair.offloaded.device.type == "sim"
    assert pair.offloaded.dtype == torch.float32
    with torch.no_grad():
        pair.check()


def test_the_call_of_diffusers_models_is_ours_to_replace(sim, monkeypatch: pytest.MonkeyPatch) -> None:
    """`model.enable_group_offload` with our function in its module's place."""
    import diffusers.hooks as hooks

    monkeypatch.setattr(hooks, "apply_group_offloading", noria.apply_group_offloading)
    shape = next(model for model in MODELS if model.name == "SD3")
    pair = Pair(shape, torch.device("sim"))
    pair.offloaded.enable_group_offload(torch.device("sim"), offload_type="leaf_level")
    with torch.no_grad():
        pair.check()


def test_every_component_of_a_pipeline_under_one_budget(sim) -> None:
    class Pipe:
        def __init__(self) -> None:
            self.components = {"text": seeded(clip)(0), "unet": seeded(unet)(0), "vae": seeded(autoencoder)(0)}
            self.components["scheduler"] = diffusers.DDIMScheduler()

    def use(pipe: Pipe, inputs: Inputs) -> Any:
        text = pipe.components["text"](inputs.whole_numbers(32, 1, 5)).last_hidden_state[..., :8]
        latents = inputs.tensor(1, 4, 8, 8)
        for step in (9, 5):
            latents = pipe.components["unet"](latents, step, encoder_hidden_states=text).sample
        return pipe.components["vae"].decode(latents).sample

    resident, offloaded = Pipe(), Pipe()
    for component in list(resident.components.values())[:3]:
        component.to("sim")
    with pytest.raises(noria.BudgetError) as small:
        noria.offload(offloaded, "sim", budget=0, granularity="leaf")
    handle = noria.offload(offloaded, "sim", budget=small.value.smallest_bytes, granularity="leaf")
    with torch.no_grad():
        for seed in range(3):
            assert_same_bits(use(offloaded, Inputs("sim", seed)), use(resident, Inputs("sim", seed)))
    assert handle.status().peak_device_bytes <= small.value.smallest_bytes
