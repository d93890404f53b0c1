"""A model twice, resident and offloaded, and what tests ask of the two."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from shapes import Inputs, Shape, assert_same_bits
from torch import nn

import noria


class Pair:
    """The same model twice: resident on the device, and offloaded."""

    def __init__(self, shape: Shape, device: torch.device, seed: int = 0) -> None:
        self.shape = shape
        self.device = device
        self.resident = shape.build(seed)
        self.offloaded = shape.build(seed)
        for part in shape.parts(self.resident).values():
            part.to(device)

    @property
    def parts(self) -> dict[str, nn.Module]:
        """The modules to offload."""
        return self.shape.parts(self.offloaded)

    @property
    def weights_bytes(self) -> int:
        """Bytes of all distinct storages, each padded as the engine places them."""
        storages = {}
        for part in self.shape.parts(self.resident).values():
            for tensor in [*part.parameters(), *part.buffers()]:
                inner = plain(tensor)
                for leaf in inner if isinstance(inner, list) else [inner]:
                    storage = leaf.untyped_storage()
                    storages[storage.data_ptr()] = -(-storage.nbytes() // 512) * 512
        return sum(storages.values())

    def smallest_budget(self, **options: Any) -> int:
        """The smallest budget that works, also when the model has grown to its largest."""
        if self.shape.grow is None:
            return smallest_budget(self.parts, self.device, **options)
        largest = self.shape.build(0)
        self.shape.grow(largest)
        return smallest_budget(self.shape.parts(largest), self.device, **options)

    def check(self, passes: int = 3, names: list[str] | None = None) -> None:
        """Makes the calls on both, `passes` times; the values must be the same bits."""
        for number in range(passes):
            for index, name in enumerate(names or self.shape.calls):
                call = self.shape.calls[name]
                seed = 100 * number + index
                expected = call(self.resident, Inputs(self.device, seed))
                actual = call(self.offloaded, Inputs(self.device, seed))
                assert_same_bits(actual, expected, f"{self.shape}, pass {number}, {name}")

    def check_state(self) -> None:
        """Parameters and buffers of both are the same bits."""
        residents = self.shape.parts(self.resident)
        for part_name, part in self.parts.items():
            expected = residents[part_name].state_dict()
            actual = part.state_dict()
            assert list(actual) == list(expected)
            for name, tensor in expected.items():
                assert_same_bits(plain(actual[name]), plain(tensor), f"{self.shape}, state {part_name}.{name}")


def plain(tensor: torch.Tensor) -> torch.Tensor | list[torch.Tensor]:
    """`tensor`, or the tensors inside a wrapper."""
    if hasattr(tensor, "__tensor_flatten__"):
        return [getattr(tensor, name) for name in tensor.__tensor_flatten__()[0]]
    return tensor


def smallest_budget(parts: dict[str, nn.Module], device: torch.device, **options: Any) -> int:
    """What `noria.offload` names as the smallest budget that works."""
    with pytest.raises(noria.BudgetError) as raised:
        noria.offload(parts, device, budget=0, **options)
    return raised.value.smallest_bytes
