"""What does one call through `noria.TorchDeviceBackend` cost, beside the call it stands for?

Prints one JSON object: nanoseconds per call (the best of five rounds), with the machine and the versions.

    .venv/bin/python bench/device_backend.py
"""

from __future__ import annotations

import json
import platform
import timeit
from collections.abc import Callable
from typing import Any

import torch

import noria


def nanoseconds(call: Callable[[], Any]) -> float:
    """Best of five rounds, so that what else runs on the machine stays out."""
    timer = timeit.Timer(call)
    count, _ = timer.autorange()
    return min(timer.repeat(5, count)) / count * 1e9


def main() -> None:
    backend = noria.TorchDeviceBackend()
    cpu = noria.TorchDeviceBackend("cpu")
    rows = {
        "construct": nanoseconds(lambda: noria.TorchDeviceBackend("cpu")),
        "synchronize": nanoseconds(cpu.synchronize),
        "torch.cpu.synchronize": nanoseconds(torch.cpu.synchronize),
        "current_stream": nanoseconds(cpu.current_stream),
        "torch.cpu.current_stream": nanoseconds(torch.cpu.current_stream),
        "capabilities": nanoseconds(lambda: cpu.capabilities.streams),
        "empty_cache": nanoseconds(cpu.empty_cache),
        "mem_get_info": nanoseconds(cpu.mem_get_info),
        "memory_allocated": nanoseconds(cpu.memory_allocated),
        "stream context": nanoseconds(lambda: _enter(cpu)),
    }
    if backend.type != "cpu":
        module: Any = backend.module
        rows[f"{backend.type} current_stream"] = nanoseconds(backend.current_stream)
        rows[f"torch.{backend.type}.current_stream"] = nanoseconds(module.current_stream)
    print(
        json.dumps(
            {
                "question": "cost of one backend call",
                "device": str(backend.device),
                "machine": platform.processor() or platform.machine(),
                "python": platform.python_version(),
                "torch": torch.__version__,
                "nanoseconds": {name: round(value) for name, value in rows.items()},
            },
            indent=2,
        )
    )


def _enter(backend: noria.TorchDeviceBackend) -> None:
    with backend.stream(backend.default_stream()):
        pass


if __name__ == "__main__":
    main()
