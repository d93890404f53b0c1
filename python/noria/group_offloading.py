"""Diffusers' `apply_group_offloading`, by our engine: the same parameters, defaults, meaning and errors."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from noria.offloading import Offload, Settings, start, with_index


def apply_group_offloading(
    module: nn.Module,
    onload_device: str | torch.device,
    offload_device: str | torch.device = torch.device("cpu"),  # noqa: B008
    offload_type: str = "block_level",
    num_blocks_per_group: int | None = None,
    non_blocking: bool = False,
    use_stream: bool = False,
    record_stream: bool = False,
    low_cpu_mem_usage: bool = False,
    offload_to_disk_path: str | None = None,
    block_modules: list[str] | None = None,
    exclude_kwargs: list[str] | None = None,
    *,
    budget: int | str | None = None,
    host_budget: int | str | None = None,
    trigger: str = "modules",
) -> Offload:
    """Keeps the weights of groups of layers off the device and brings each group on just before it is used.

    Args:
        module: the model.
        onload_device: where it runs.
        offload_device: where weights wait: the cpu.
        offload_type: "block_level" or "leaf_level".
        num_blocks_per_group: blocks per group at block level; required there.
        non_blocking: accepted; the engine never blocks where it need not.
        use_stream: copy beside computation, on streams; needs a device that has them.
        record_stream: accepted; the engine needs no such marks.
        low_cpu_mem_usage: weights stay in pageable memory; copies pass through three page-locked slots, each as large
            as the largest group.
        offload_to_disk_path: a folder for the weights, which then need no host memory; as `disk` of `noria.offload`.
        block_modules: names of submodules in which lists count as blocks; default: the module's own
            `_group_offload_block_modules`, else all.
        exclude_kwargs: keyword arguments of the root that stay on their device; default: the module's `_skip_keys`.
        budget: bytes of weights on the device; default: as Diffusers, one group, or two with streams.
        host_budget: bytes of host memory that may be page-locked.
        trigger: "modules" or "ops".

    Returns:
        The handle. It may be dropped.

    Raises:
        ValueError: for the same misuse as in Diffusers.
        BudgetError: `budget` is too small.
    """
    if not isinstance(module, nn.Module):
        raise TypeError(f"apply_group_offloading takes an nn.Module, and got a {type(module).__name__}")
    if num_blocks_per_group is not None and (
        isinstance(num_blocks_per_group, bool) or not isinstance(num_blocks_per_group, int)
    ):
        raise TypeError(f"num_blocks_per_group must be an int, and is {num_blocks_per_group!r}")
    device = with_index(onload_device)
    if torch.device(offload_device).type != "cpu":
        raise ValueError(f"weights wait on the cpu, and offload_device is {offload_device!r}")
    kind = getattr(offload_type, "value", offload_type)
    if kind not in ("block_level", "leaf_level"):
        raise ValueError(f"{offload_type!r} is not a valid offload_type; use 'block_level' or 'leaf_level'")
    if use_stream:
        from noria.device import TorchDeviceBackend

        backend = TorchDeviceBackend(device)
        if not backend.capabilities.streams:
            raise ValueError(
                "Using streams for data transfer requires an onload device whose backend implements streams, and "
                f"{device} has none. Pass use_stream=False."
            )
    if record_stream and not use_stream:
        raise ValueError("`record_stream` cannot be True when `use_stream=False`.")
    if kind == "block_level" and num_blocks_per_group is None:
        raise ValueError("`num_blocks_per_group` must be provided when using `offload_type='block_level'`.")
    if num_blocks_per_group is not None and num_blocks_per_group < 1:
        raise ValueError(f"num_blocks_per_group must be at least 1, and is {num_blocks_per_group}")
    if trigger not in ("modules", "ops"):
        raise ValueError(f"trigger must be 'modules' or 'ops', and is {trigger!r}")
    if block_modules is None:
        block_modules = getattr(module, "_group_offload_block_modules", None)
    if exclude_kwargs is None:
        exclude_kwargs = getattr(module, "_skip_keys", None)
    settings = Settings(
        device=device,
        budget="ring" if budget is None else budget,
        granularity="block" if kind == "block_level" else "leaf",
        blocks_per_group=num_blocks_per_group or 1,
        block_modules=list(block_modules or []),
        unmoved_kwargs=_as_set(exclude_kwargs),
        host_budget=host_budget,
        use_streams=use_stream,
        low_memory=low_cpu_mem_usage,
        disk=None if offload_to_disk_path is None else str(offload_to_disk_path),
        trigger=trigger,
    )
    return start({"": module}, settings, strict_accelerate=True)


def _as_set(names: Any) -> set[str]:
    if names is None:
        return set()
    return {names} if isinstance(names, str) else set(names)


def remove_group_offloading(module: nn.Module, device: str | torch.device = "cpu") -> None:
    """Ends offloading of `module`; its original parameters, with their values, are on `device`. Safe twice."""
    owner: Offload | None = module.__dict__.get("_noria_offload")
    if owner is None:
        return
    if module not in owner.roots:
        raise ValueError("this module is a part of an offloaded model; end offloading of the whole model")
    owner.remove(device)
