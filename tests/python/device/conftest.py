"""Stand-in device modules, in this process for names that PyTorch knows and in a fresh one for the others."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

import stand_ins  # noqa: E402

from noria.device import base, registry  # noqa: E402


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, Any], Any]:
    """`stand_in("xpu", stand_ins.Full)`: torch.xpu is that stand-in until the test ends."""

    def put(name: str, kind: Any, count: int = 2) -> Any:
        assert name in stand_ins.KNOWN, "other names need a fresh process"
        module = kind(name) if kind is stand_ins.NothingAtAll else kind(name, count)
        monkeypatch.setattr(torch, name, module, raising=False)
        return module

    return put


@pytest.fixture(autouse=True)
def _forget() -> Iterator[None]:
    """Nothing that one test registered, probed or said once reaches the next."""
    yield
    registry._factories.clear()
    base._probed.clear()
    base._said.clear()


@pytest.fixture(scope="session")
def on_stub(fresh_python: Callable[..., str]) -> Callable[..., str]:
    """Runs a script where the stub device of the C++ tests is installed under a name; `stub` is its module."""

    def run(script: str, name: str = "npu", **settings: Any) -> str:
        head = (
            f"import sys; sys.path.insert(0, {str(HERE)!r})\n"
            "import types, warnings, torch, noria, stand_ins\n"
            "import noria_stub_device as stub\n"
            f"stub.install({name!r}); stub.set(**{settings!r})\n"
            f"module = types.ModuleType({name!r})\n"
            "module.is_available = lambda: True\n"
            f"torch._register_device_module({name!r}, module)\n"
        )
        return fresh_python(head + textwrap.dedent(script))

    return run


@pytest.fixture(scope="session")
def with_stand_in(fresh_python: Callable[..., str]) -> Callable[..., str]:
    """Runs a script where torch.<name> is a Python stand-in, for names that PyTorch does not know; `module` is it."""

    def run(script: str, name: str, kind: str) -> str:
        head = (
            f"import sys; sys.path.insert(0, {str(HERE)!r})\n"
            "import warnings, torch, noria, stand_ins\n"
            f"module = stand_ins.install({name!r}, stand_ins.{kind})\n"
        )
        return fresh_python(head + textwrap.dedent(script))

    return run
