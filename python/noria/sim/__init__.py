"""A simulated accelerator: `torch.device("sim")`, with real values, virtual time and a checker of stream order.

    sim = noria.sim.enable("rtx4090")
    y = model.to("sim")(x.to("sim"))
    print(sim.clock(), sim.stats()["peak_allocated"])

docs/simulator.md says what is modelled and what is not.
"""

from __future__ import annotations

from noria.sim.configuration import enable, profiles, reserve
from noria.sim.reports import Access, Finding, Race, Span
from noria.sim.simulator import Simulator

__all__ = ["Access", "Finding", "Race", "Simulator", "Span", "enable", "profiles", "reserve"]
