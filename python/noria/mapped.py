"""disk="mapped": weights that are ordinary cpu tensors over private mappings of their checkpoint files.

Nothing is read before it is used and nothing is copied; the system brings pages in and drops them as it sees fit, so
the budget does not bound what is in memory. A weight that is written keeps the new values in memory of its own. What is
given up: when the file is truncated, touching a lost weight kills the process; what is written into the file becomes
weights. Only tensors at a multiple of 64 bytes in their file are mapped: at another alignment a matrix product gives
other bits. The rest is streamed as with disk="checkpoint".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from noria import _C
from noria._model import Model, Slot, repoint
from noria.loading import FileHomes

_ALIGNMENT = 64


@dataclass
class MappedWeights:
    """The weights of one model that are mapped.

    Attributes:
        slots: where they are registered, each with the tensor that was there before.
    """

    slots: list[tuple[Slot, torch.Tensor | None]] = field(default_factory=list)

    @classmethod
    def take(cls, roots: Mapping[str, nn.Module], homes: list[FileHomes]) -> MappedWeights:
        """Maps what can be mapped.

        Args:
            roots: the model.
            homes: their checkpoints.

        Raises:
            IntegrityError, StorageError: a file has changed or cannot be mapped; nothing is mapped then.
        """
        mapped = cls()
        try:
            for slots, home, entry in _candidates(Model(roots), homes):
                old = slots[0].tensor
                flat = _C.map_tensor(home.shards, entry[2], entry[3], old)
                before = old if old.is_meta else old.detach()
                mapped.slots += [(slot, before) for slot in slots]
                repoint(slots[0], flat)
                for slot in slots[1:]:  # registered under another name too
                    slot.registry[slot.key] = slots[0].tensor
        except BaseException:
            mapped.undo()
            raise
        return mapped

    @staticmethod
    def planned(roots: Mapping[str, nn.Module], homes: list[FileHomes]) -> set[int]:
        """Identities of the tensors that `take` would map."""
        return {id(slots[0].tensor) for slots, _, _ in _candidates(Model(roots), homes)}

    @property
    def tensors(self) -> dict[int, tuple[str, torch.Tensor]]:
        """Name and tensor of each mapped weight, by its identity."""
        return {id(slot.tensor): (slot.name, slot.tensor) for slot, _ in self.slots}

    def undo(self) -> None:
        """Puts the weights back that were there before; not after `settle`."""
        for slot, before in self.slots:
            if before is None:
                continue
            if before.is_meta:
                slot.registry[slot.key] = before
            else:
                repoint(slot, before)
        self.slots = []

    def settle(self) -> None:
        """Lets what was there before go."""
        self.slots = [(slot, None) for slot, _ in self.slots]

    def bring_home(self) -> None:
        """Copies the weights into memory; the tensors stay the same objects."""
        for slot, _ in self.slots:
            tensor = slot.registry.get(slot.key)
            if tensor is not None and _C.is_mapped(tensor):
                repoint(slot, tensor.detach().clone())
        self.slots = []


def _candidates(model: Model, homes: list[FileHomes]) -> list[tuple[list[Slot], FileHomes, Any]]:
    """Whole, contiguous weights that stand at a good place of a file that holds them, in the model's own dtype."""
    by_page: dict[int, list[Slot]] = {}
    for slot in model.slots:
        for leaf in slot.leaves:
            by_page.setdefault(model.table.page_of(leaf.index), []).append(slot)
    found = []
    for page, slots in by_page.items():
        tensor = slots[0].tensor
        if page == _C.NO_PAGE or any(slot.tensor is not tensor or len(slot.leaves) != 1 for slot in slots):
            continue
        if not tensor.is_contiguous() or tensor.untyped_storage().nbytes() != tensor.nbytes:
            continue
        for home in homes:
            entry = home.entry_of(slots)
            if entry is not None and entry[3] % _ALIGNMENT == 0 and home.holds(tensor, entry):
                found.append((slots, home, entry))
                break
    return found
