"""Offloaders that the report tests take as an argument: ours, and Diffusers' own."""

from __future__ import annotations

import os
from typing import Any, Protocol

import safetensors.torch
import torch
from torch import nn

import noria


class Offloader(Protocol):
    """Group offloading with Diffusers' arguments."""

    name: str
    hooks: bool  # whether it puts hooks on modules

    def __call__(self, module: nn.Module, onload_device: str = "sim", **options: Any) -> None:
        """Offloads the module. Without options that say otherwise: leaf level, no stream."""

    def remove(self, module: nn.Module) -> None:
        """Ends it; the weights are on the cpu."""

    def layers_changed(self, module: nn.Module) -> None:
        """Says that adapters came or went, where an offloader must be told."""

    def pinned_bytes(self, module: nn.Module) -> int:
        """Page-locked host memory that was taken for the module."""


def _with_defaults(options: dict[str, Any]) -> dict[str, Any]:
    if "offload_type" not in options and "num_blocks_per_group" not in options:
        options = {"offload_type": "leaf_level", **options}
    return options


def hooks_of(module: nn.Module) -> dict[str, int]:
    """Every registry of hooks of a module and of the modules in it that is not empty."""
    return {
        f"{name}.{registry}": len(hooks)
        for name, child in module.named_modules()
        for registry, hooks in vars(child).items()
        if "hook" in registry and isinstance(hooks, dict) and hooks
    }


class Noria:
    """Ours."""

    name = "noria"
    hooks = True

    def __call__(self, module: nn.Module, onload_device: str = "sim", **options: Any) -> None:
        noria.apply_group_offloading(module, onload_device, **_with_defaults(options))

    def remove(self, module: nn.Module) -> None:
        noria.remove_group_offloading(module)

    def layers_changed(self, module: nn.Module) -> None:
        pass

    def pinned_bytes(self, module: nn.Module) -> int:
        return module.__dict__["_noria_offload"].status().host_pinned_bytes


class NoriaNet(Noria):
    """Ours without hooks: groups, order and prefetch come from operators alone."""

    hooks = False

    def __call__(self, module: nn.Module, onload_device: str = "sim", **options: Any) -> None:
        before = hooks_of(module)
        super().__call__(module, onload_device, trigger="ops", **options)
        assert hooks_of(module) == before


def _teach_safetensors_the_device() -> None:
    """Its loader knows the devices that PyTorch ships with, and no other; that is not Diffusers' fault."""
    original = safetensors.torch.load_file

    def load_file(path: Any, device: Any = "cpu") -> dict[str, torch.Tensor]:
        if torch.device(device).type != "sim":
            return original(path, device=device)  # type: ignore[no-any-return]
        return {name: tensor.to(device) for name, tensor in original(path, device="cpu").items()}

    safetensors.torch.load_file = load_file


class Diffusers:
    """Diffusers' own."""

    name = "diffusers"
    hooks = True

    def __init__(self) -> None:
        self._pinned: dict[int, int] = {}
        _teach_safetensors_the_device()

    def __call__(self, module: nn.Module, onload_device: str = "sim", **options: Any) -> None:
        from diffusers.hooks import apply_group_offloading

        original = torch.Tensor.pin_memory
        pinned = 0

        def counting(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
            nonlocal pinned
            pinned += tensor.nbytes
            return original(tensor, *args, **kwargs)

        torch.Tensor.pin_memory = counting  # type: ignore[method-assign]
        try:
            apply_group_offloading(module, torch.device(onload_device), **_with_defaults(options))
        finally:
            torch.Tensor.pin_memory = original  # type: ignore[method-assign]
        self._pinned[id(module)] = pinned

    def remove(self, module: nn.Module) -> None:
        raise NotImplementedError("there is no public call that ends group offloading")

    def layers_changed(self, module: nn.Module) -> None:
        from diffusers.hooks.group_offloading import (
            _get_top_level_group_offload_hook,
            _maybe_remove_and_reapply_group_offloading,
        )

        assert _get_top_level_group_offload_hook(module) is not None
        _maybe_remove_and_reapply_group_offloading(module)

    def pinned_bytes(self, module: nn.Module) -> int:
        return self._pinned[id(module)]


OFFLOADERS = {"noria": Noria, "net": NoriaNet, "diffusers": Diffusers}


def named(name: str) -> Offloader:
    """The offloader of this name, made anew."""
    return OFFLOADERS[name]()


def names() -> list[str]:
    """Those that the report tests run on: ours with and without hooks, or what NORIA_OFFLOADER names."""
    asked = os.environ.get("NORIA_OFFLOADER")
    return [asked] if asked else ["noria", "net"]
