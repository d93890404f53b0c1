"""The devices that engine tests run on."""

from __future__ import annotations

import ctypes
import gc
import sys
from collections.abc import Iterator

import pytest
import torch
from offloaders import Offloader, named, names

import noria.sim

_M_MMAP_THRESHOLD = -3  # malloc.h of the GNU C library


@pytest.fixture(scope="package", autouse=True)
def _quick_small_tests() -> Iterator[None]:
    """The models are tiny; threads that wait for each other would be most of the time."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    # Every weight in pages of its own, given back when it is freed: tests of the resident set measure us, not the heap.
    ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, 64 << 10)
    gc.collect()
    gc.freeze()  # makes the collections between the tests cheap
    yield
    gc.unfreeze()
    torch.set_num_threads(threads)


@pytest.fixture(params=names())
def offloader(request: pytest.FixtureRequest) -> Offloader:
    """What the report tests ask: ours with and without hooks, or the one that NORIA_OFFLOADER names."""
    return named(request.param)


def forget_the_last_failure() -> None:
    """What a failed test left in its traceback would keep tensors of the simulated device alive."""
    for name in ("last_exc", "last_value", "last_traceback"):
        if hasattr(sys, name):
            delattr(sys, name)
    gc.collect()


@pytest.fixture
def sim(simulate) -> Iterator[noria.sim.Simulator]:
    """One simulated RTX 4090 with real values; a race raises where it is found, or at the latest here."""
    forget_the_last_failure()
    simulator = simulate()
    yield simulator
    assert simulator.races() == []


@pytest.fixture(params=["cpu", "sim"])
def device(request: pytest.FixtureRequest) -> torch.device:
    """The cpu, then the simulated accelerator, which is enabled only for the tests that use it."""
    if request.param == "sim":
        request.getfixturevalue("sim")
    return torch.device(request.param)
