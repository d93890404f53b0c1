"""Writes what the C++ examples read: weights for transformer.cpp, and a TorchScript module for torchscript.cpp.

python export.py FOLDER
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import nn

WIDTH = 256
BLOCKS = 8
TOKENS = 512


def transformer() -> nn.ModuleDict:
    """Modules with the names and shapes of the C++ transformer."""

    def block() -> nn.ModuleDict:
        return nn.ModuleDict(
            {
                "norm1": nn.LayerNorm(WIDTH),
                "qkv": nn.Linear(WIDTH, 3 * WIDTH),
                "out": nn.Linear(WIDTH, WIDTH),
                "norm2": nn.LayerNorm(WIDTH),
                "up": nn.Linear(WIDTH, 4 * WIDTH),
                "down": nn.Linear(4 * WIDTH, WIDTH),
            }
        )

    blocks = nn.ModuleList(block() for _ in range(BLOCKS))
    return nn.ModuleDict({"tokens": nn.Embedding(TOKENS, WIDTH), "blocks": blocks})


def main(folder: Path) -> None:
    """Writes both files."""
    torch.manual_seed(0)
    folder.mkdir(parents=True, exist_ok=True)
    save_file(transformer().state_dict(), folder / "transformer.safetensors")
    layers = [layer for _ in range(BLOCKS) for layer in (nn.Linear(WIDTH, WIDTH), nn.GELU())]
    torch.jit.script(nn.Sequential(*layers)).save(str(folder / "script.pt"))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
