"""Tiny models of the families that users offload, with one forward call each; the same in every process."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch


@dataclass
class Case:
    """A model on the CPU and the keyword arguments of one call."""

    model: torch.nn.Module
    inputs: dict[str, Any]

    def on(self, device: str) -> Case:
        """The same case with model and inputs on `device`."""
        move = {k: v.to(device) if isinstance(v, torch.Tensor) else v for k, v in self.inputs.items()}
        return Case(self.model.to(device), move)

    def run(self) -> torch.Tensor:
        """The first output, without gradients."""
        with torch.no_grad():
            output = self.model(**self.inputs)
        return output if isinstance(output, torch.Tensor) else output[0]


def flux() -> Case:
    from diffusers import FluxTransformer2DModel

    model = FluxTransformer2DModel(
        patch_size=1, in_channels=4, num_layers=2, num_single_layers=2, attention_head_dim=16, num_attention_heads=2,
        joint_attention_dim=32, pooled_projection_dim=32, axes_dims_rope=[4, 4, 8],
    )  # fmt: skip
    inputs = {
        "hidden_states": torch.randn(1, 16, 4),
        "encoder_hidden_states": torch.randn(1, 8, 32),
        "pooled_projections": torch.randn(1, 32),
        "timestep": torch.tensor([0.5]),
        "img_ids": torch.randn(16, 3).round(),
        "txt_ids": torch.zeros(8, 3),
    }
    return Case(model, inputs)


def unet() -> Case:
    from diffusers import UNet2DConditionModel

    model = UNet2DConditionModel(
        sample_size=8, block_out_channels=(4, 8), layers_per_block=1, norm_num_groups=2, cross_attention_dim=8,
        attention_head_dim=2, down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
    )  # fmt: skip
    return Case(
        model,
        {"sample": torch.randn(1, 4, 8, 8), "timestep": torch.tensor(3), "encoder_hidden_states": torch.randn(1, 5, 8)},
    )


def vae() -> Case:
    from diffusers import AutoencoderKL

    model = AutoencoderKL(
        block_out_channels=[4, 8], norm_num_groups=2, latent_channels=4,
        down_block_types=["DownEncoderBlock2D"] * 2, up_block_types=["UpDecoderBlock2D"] * 2,
    )  # fmt: skip
    return Case(model, {"sample": torch.randn(1, 3, 16, 16)})


def bert() -> Case:
    from transformers import BertConfig, BertModel

    config = BertConfig(vocab_size=50, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32)
    mask = torch.ones(2, 9, dtype=torch.int64)
    mask[1, 5:] = 0
    return Case(BertModel(config), {"input_ids": torch.randint(0, 50, (2, 9)), "attention_mask": mask})


def t5() -> Case:
    from transformers import T5Config, T5EncoderModel

    config = T5Config(vocab_size=50, d_model=16, d_kv=8, d_ff=32, num_layers=3, num_heads=2)
    mask = torch.ones(2, 9, dtype=torch.int64)
    mask[1, 5:] = 0
    return Case(T5EncoderModel(config), {"input_ids": torch.randint(0, 50, (2, 9)), "attention_mask": mask})


def clip() -> Case:
    from transformers import CLIPTextConfig, CLIPTextModel

    config = CLIPTextConfig(
        vocab_size=50, hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2, eos_token_id=49
    )
    return Case(CLIPTextModel(config), {"input_ids": torch.randint(0, 49, (2, 9))})


def llama() -> Case:
    from transformers import LlamaConfig, LlamaModel

    config = LlamaConfig(
        vocab_size=50, hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=64,
    )  # fmt: skip
    mask = torch.ones(2, 9, dtype=torch.int64)
    mask[1, :4] = 0
    return Case(
        LlamaModel(config), {"input_ids": torch.randint(0, 50, (2, 9)), "attention_mask": mask, "use_cache": False}
    )


CASES: dict[str, Callable[[], Case]] = {
    "flux": flux, "unet": unet, "vae": vae, "bert": bert, "t5": t5, "clip": clip, "llama": llama,
}  # fmt: skip


def build(name: str) -> Case:
    """The case called `name`, in evaluation mode, from a fixed seed."""
    torch.manual_seed(0)
    case = CASES[name]()
    case.model.eval()
    return case
