"""What every Python test may use: fresh interpreters, the number of seeds, and the tests marked long."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable

import pytest

import noria.sim

LONG = os.environ.get("NORIA_LONG") == "1"
SIMULATED_DEVICES = 4


def pytest_sessionstart() -> None:
    # A test that runs a backward may come before one that simulates.
    noria.sim.reserve(SIMULATED_DEVICES)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    skip = pytest.mark.skip(reason="long: runs with NORIA_LONG=1 (make test-long)")
    for item in items:
        if item.get_closest_marker("long") is not None and not LONG:
            item.add_marker(skip)


@pytest.fixture(scope="session")
def seeds() -> Callable[[int], range]:
    """`seeds(500)`: the random seeds of a test, all of them in a long run and otherwise a tenth."""
    return lambda count: range(count if LONG else max(1, count // 10))


@pytest.fixture(scope="session")
def fresh_python() -> Callable[..., str]:
    """Runs a script in an interpreter of its own and returns what it printed; fails with its stderr.

    For everything that a process does once: imports, renaming PrivateUse1, entry points. Keywords set environment
    variables.
    """

    def run(script: str, **environment: str) -> str:
        done = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(script)],
            check=False,
            capture_output=True,
            text=True,
            env={**os.environ, **environment},
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    return run


@pytest.fixture(scope="session")
def simulate() -> Callable[..., noria.sim.Simulator]:
    """`simulate(profile, **options)`: the simulator configured afresh; the options are those of `noria.sim.enable`."""

    def enable(profile: str = "rtx4090", **options: object) -> noria.sim.Simulator:
        # Tensors of an earlier test that only reference cycles keep alive; what the first round frees may have held
        # another one from outside Python.
        for _ in range(3):
            gc.collect()
        return noria.sim.enable(profile, **options)

    return enable
