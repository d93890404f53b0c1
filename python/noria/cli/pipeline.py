"""`noria run` on a folder with a Diffusers pipeline."""

from __future__ import annotations

import argparse
import contextlib
import inspect
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from noria._amount import free_bytes, resolve_bytes

# A pipeline loops over its denoiser inside one call; two calls show the first one's learning and a steady one.
_CALLS = 2


def is_pipeline(folder: Path) -> bool:
    """Whether the folder holds a Diffusers pipeline."""
    return (folder / "model_index.json").is_file()


def has_safetensors(folder: Path) -> bool:
    """Whether every component with weights has them in safetensors files."""
    index = json.loads((folder / "model_index.json").read_text())
    parts = [folder / name for name, value in index.items() if isinstance(value, list) and (folder / name).is_dir()]
    weights = [part for part in parts if any(part.glob("*.bin")) or any(part.glob("*.safetensors"))]
    return bool(weights) and all(any(part.glob("*.safetensors")) for part in weights)


def components(pipe: Any) -> dict[str, nn.Module]:
    """The modules of a pipeline, by name."""
    return {name: part for name, part in pipe.components.items() if isinstance(part, nn.Module)}


def make_pipeline(folder: Path, dtype: str | None) -> Any:
    """The pipeline, in host memory, quiet.

    Raises:
        RuntimeError: diffusers is not installed.
        ValueError: no such dtype.
    """
    try:
        from diffusers import DiffusionPipeline
    except ImportError:
        raise RuntimeError(f"{folder} holds a Diffusers pipeline, and diffusers is not installed") from None
    options: dict[str, Any] = {}
    if dtype is not None:
        options["torch_dtype"] = element_type(dtype)
    pipe = DiffusionPipeline.from_pretrained(folder, **options)
    pipe.set_progress_bar_config(disable=True)
    for part in components(pipe).values():
        part.eval().requires_grad_(False)
    return pipe


def element_type(name: str) -> torch.dtype:
    """The element type of that name, e.g. "bfloat16".

    Raises:
        ValueError: not a dtype.
    """
    found = getattr(torch, name, None)
    if not isinstance(found, torch.dtype):
        raise ValueError(f"--dtype must be an element type such as bfloat16, and is {name!r}")
    return found


def call(pipe: Any, arguments: argparse.Namespace) -> np.ndarray[Any, Any]:
    """One call of the pipeline; its images or other output, (batch, ...)."""
    takes = inspect.signature(pipe.__call__).parameters
    given: dict[str, Any] = {"num_inference_steps": arguments.steps, "output_type": "np"}
    if "prompt" in takes:
        given["prompt"] = arguments.prompt[0] if arguments.prompt else "a water wheel"
    given["generator"] = torch.Generator("cpu").manual_seed(arguments.seed)
    result = pipe(**{name: value for name, value in given.items() if name in takes})
    first = next(iter(result.values()))
    return np.asarray(first)


def weights_bytes(pipe: Any) -> int:
    """Bytes of the distinct tensors of all components."""
    storages = {
        tensor.untyped_storage()._cdata: tensor.untyped_storage().nbytes()
        for part in components(pipe).values()
        for tensor in [*part.parameters(), *part.buffers()]
    }
    return sum(storages.values())


def run_pipeline(arguments: argparse.Namespace, folder: Path) -> Any:
    """Runs the pipeline under the budget, and resident too on request; returns the report."""
    import noria
    from noria.cli.run import Clock, Report, choose_device, measure, quiet_libraries, traced

    device, sim = choose_device(arguments)
    clock = Clock(device, sim)
    with quiet_libraries():
        pipe = make_pipeline(folder, arguments.dtype)
    budget: int | str = "auto"
    if arguments.budget is not None:
        budget = resolve_bytes(arguments.budget, free_bytes(device), "--budget")
    report = Report(
        model=folder.resolve().name,
        device=str(device),
        budget_bytes=0,
        weights_bytes=weights_bytes(pipe),
        simulated=None if sim is None else arguments.profile,
    )
    expected = None
    if arguments.compare:
        with quiet_libraries():
            whole = make_pipeline(folder, arguments.dtype)
        for part in components(whole).values():
            for parameter in part.parameters():
                parameter.data = parameter.data.clone()  # out of the mapped file, to the allocator's alignment
        whole.to(device)
        expected, seconds = measure(lambda: call(whole, arguments), clock, 1)
        report.resident_seconds = seconds[0]
        del whole
    disk = "checkpoint" if device.type == "cpu" and has_safetensors(folder) else None
    handle = noria.offload(pipe, device, budget=budget, disk=disk)
    output = None
    with contextlib.ExitStack() as stack:
        stack.enter_context(traced(handle, arguments, report))
        before = handle.status()
        for _ in range(_CALLS):
            output, seconds = measure(lambda: call(pipe, arguments), clock, 1)
            after = handle.status()
            report.add_pass(seconds[0], before, after)
            before = after
            if expected is not None:
                same = np.array_equal(output, expected)
                report.equal_to_resident = report.equal_to_resident is not False and same
    report.finish(handle.status())
    if arguments.output is not None:
        save(arguments.output, output)
    return report


def save(path: Path, output: Any) -> None:
    """An image where the ending says so, else a .npy file."""
    if path.suffix.lower() in (".png", ".jpg", ".jpeg", ".webp"):
        from PIL import Image

        image = (np.clip(output[0], 0.0, 1.0) * 255).round().astype("uint8")
        Image.fromarray(image.squeeze(-1) if image.shape[-1] == 1 else image).save(path)
    else:
        np.save(path, output)
