"""Rows of docs/reports.md: what users reported, and the tests that ask it of an offloader."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from offloaders import Offloader
from pairs import Pair
from shapes import SHAPES, Shape, forward, seeded
from torch import nn


@dataclass(frozen=True)
class Report:
    """A row of the table.

    Attributes:
        number: in our log; L numbers come from reading code, the others from users.
        source: the public thread, or what was read.
        expected: what is asked of an offloader.
        module: where the test is.
    """

    number: str
    source: str
    expected: str
    module: str


REPORTS: dict[str, Report] = {}


def report(number: str, source: str, expected: str) -> Callable[[Any], Any]:
    """Puts a test into the table."""

    def register(test: Any) -> Any:
        REPORTS[test.__name__] = Report(number, source, expected, test.__module__)
        return test

    return register


BLOCKS = {"offload_type": "block_level", "num_blocks_per_group": 1}
LEAVES = {"offload_type": "leaf_level"}
EITHER = pytest.mark.parametrize("level", [BLOCKS, LEAVES], ids=["block", "leaf"])


def offloaded(offloader: Offloader, shape: Shape | str, device: str = "sim", **options: Any) -> Pair:
    """A pair whose second model the offloader has."""
    pair = Pair(SHAPES[shape] if isinstance(shape, str) else shape, torch.device(device))
    for part in pair.parts.values():
        offloader(part, device, **options)
    return pair


def model_of(name: str, factory: Callable[[], nn.Module], *size: int, **calls: Any) -> Shape:
    """A shape made by `factory`; without `calls` its forward takes a tensor of `size`."""
    return Shape(name, seeded(lambda _: factory()), calls or {"forward": forward(*size)})
