"""How long does one pass of a 12-billion-parameter Flux take on a machine that we do not have, and how much memory?

Builds FLUX.1's transformer from its configuration without weights, runs one dry pass at 1024 x 1024 pixels on a
simulated machine, and prints virtual seconds, peak bytes, and what the dry pass cost here.

    python bench/sim_flux_dry.py [--profile h100] [--json]
"""

from __future__ import annotations

import argparse
import json
import resource
import time

import torch

import noria.sim

IMAGE_TOKENS = (1024 // 16) ** 2
TEXT_TOKENS = 512


def flux_inputs(device: str) -> dict[str, torch.Tensor]:
    """One call's inputs, batch 1."""
    options = {"dtype": torch.bfloat16, "device": device}
    return {
        "hidden_states": torch.randn(1, IMAGE_TOKENS, 64, **options),
        "encoder_hidden_states": torch.randn(1, TEXT_TOKENS, 4096, **options),
        "pooled_projections": torch.randn(1, 768, **options),
        "timestep": torch.tensor([0.5], **options),
        "guidance": torch.tensor([3.5], **options),
        "img_ids": torch.zeros(IMAGE_TOKENS, 3, **options),
        "txt_ids": torch.zeros(TEXT_TOKENS, 3, **options),
    }


def dry_pass(profile: str) -> dict[str, float | int | str]:
    """Virtual and real cost of one pass on `profile`."""
    from diffusers import FluxTransformer2DModel

    began = time.monotonic()
    sim = noria.sim.enable(profile, dry=True)
    with torch.device("meta"):
        model = FluxTransformer2DModel(guidance_embeds=True)
    model = model.to(torch.bfloat16).to_empty(device="sim").eval()
    inputs = flux_inputs("sim")
    torch.sim.synchronize()
    start = sim.clock()
    with torch.no_grad():
        output = model(**inputs, return_dict=False)[0]
    torch.sim.synchronize()
    assert output.shape == (1, IMAGE_TOKENS, 64)
    stats = sim.stats()
    return {
        "machine": profile,
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "virtual_seconds": sim.clock() - start,
        "kernels": int(stats["kernels"]),
        "peak_device_bytes": int(stats["peak_allocated"]),
        "real_seconds": time.monotonic() - began,
        "real_peak_rss_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--profile", default="h100")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    row = dry_pass(arguments.profile)
    if arguments.json:
        print(json.dumps(row))
        return
    for name, value in row.items():
        print(f"{name:>20}  {value:,}" if isinstance(value, int) else f"{name:>20}  {value}")


if __name__ == "__main__":
    main()
