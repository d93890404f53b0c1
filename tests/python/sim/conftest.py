"""The simulated accelerator for a test: configured anew, with the order checker on."""

from __future__ import annotations

import pytest

import noria.sim


@pytest.fixture
def sim(simulate) -> noria.sim.Simulator:
    """One simulated RTX 4090 with real values; a race raises."""
    return simulate()
