"""Loads the extension, or says why it cannot be loaded and what to do."""

from __future__ import annotations

import importlib


def load_extension(torch_version: str) -> None:
    """Imports `noria._C` after checking that it was built for this torch.

    Raises:
        ImportError: no extension for this torch, with the remedy.
    """
    minor = ".".join(torch_version.split("+")[0].split(".")[:2])
    try:
        extension = importlib.import_module("noria._C")
    except ImportError as error:
        raise ImportError(
            f"noria's extension cannot be loaded beside torch {torch_version} ({error}). It is built for one minor "
            "version of torch: build it in this environment with `pip install --no-build-isolation --force-reinstall "
            "--no-deps noria`"
        ) from error
    if extension.torch_minor != minor:
        raise ImportError(
            f"noria was built for torch {extension.torch_minor}, and this is torch {torch_version}; PyTorch's C++ "
            f"interface differs between minor versions. Install torch {extension.torch_minor}, or build noria again "
            "with `pip install --no-build-isolation --force-reinstall --no-deps noria`"
        )
