"""Starting from safetensors files: a model is built without weights, and they stay on disk until they are used."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn

from noria import _C
from noria._model import Model
from noria.errors import IntegrityError

_log = logging.getLogger("noria")

# Names of element types in safetensors files (the format's `Dtype`).
_DTYPES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
    torch.complex64: "C64",
}


@contextmanager
def empty_weights() -> Iterator[None]:
    """Modules made inside have their parameters on meta, without bytes; their buffers are real.

    Not thread-safe: it changes `nn.Module.register_parameter` while it is active.
    """
    original = nn.Module.register_parameter

    def register(self: nn.Module, name: str, param: nn.Parameter | None) -> None:
        original(self, name, param)
        if param is not None and not param.is_meta:
            with torch.no_grad():
                self._parameters[name] = nn.Parameter(
                    torch.empty_like(param, device="meta"), requires_grad=param.requires_grad
                )

    nn.Module.register_parameter = register  # type: ignore[method-assign]
    try:
        yield
    finally:
        nn.Module.register_parameter = original  # type: ignore[method-assign]


class FileHomes:
    """Which tensor of a checkpoint is the home of which page."""

    def __init__(self, checkpoint: str | Path, prefixes: tuple[str, ...] = ("",)) -> None:
        """Opens the checkpoint: a .safetensors file, an index, or a folder.

        Args:
            checkpoint: where it is.
            prefixes: what may stand before the model's own names in the file, or be missing from them.
        """
        self.shards = _C.ShardSet.open(str(checkpoint))
        self._tensors = self.shards.tensors
        self._prefixes = prefixes
        self._names: dict[int, list[Any]] = {}

    def entry(self, name: str) -> Any:
        """The checkpoint's (dtype, shape, file, offset, bytes) for a tensor of the model, or None."""
        for prefix in self._prefixes:
            found = self._tensors.get(prefix + name)
            if found is None and prefix and name.startswith(prefix):
                found = self._tensors.get(name.removeprefix(prefix))
            if found is not None:
                return found
        return None

    def check(self, model: Model) -> None:
        """Every tensor on meta must be in the checkpoint, with the same shape and dtype.

        Raises:
            IntegrityError: names what is missing or differs.
        """
        self._names = {}
        for slot in model.slots:
            for leaf in slot.leaves:
                self._names.setdefault(model.table.page_of(leaf.index), []).append(slot)
        missing = []
        used = set()
        for page, slots in self._names.items():
            if page == _C.NO_PAGE or not slots[0].tensor.is_meta:
                continue
            slot, entry = self._find(slots)
            if entry is None:
                missing.append(slots[0].name)
                continue
            used.add(slot.name)
            dtype, shape = entry[0], list(entry[1])
            if shape != list(slot.tensor.shape):
                raise IntegrityError(
                    f"'{slot.name}' is {list(slot.tensor.shape)} in the model and {shape} in the checkpoint"
                )
            if dtype != _DTYPES.get(slot.tensor.dtype):
                raise IntegrityError(
                    f"'{slot.name}' is {slot.tensor.dtype} in the model and {dtype} in the checkpoint; build the model "
                    "with the checkpoint's dtype"
                )
        if missing:
            shown = ", ".join(missing[:5]) + (f" and {len(missing) - 5} more" if len(missing) > 5 else "")
            raise IntegrityError(f"the checkpoint has no {shown}")
        unexpected = len(self._tensors) - len(used)
        if unexpected > 0:
            _log.debug("%d tensors of the checkpoint are not weights of the model", unexpected)

    def _find(self, slots: list[Any]) -> tuple[Any, Any]:
        for slot in slots:
            entry = self.entry(slot.name)
            if entry is not None:
                return slot, entry
        return slots[0], None

    def give(self, engine: _C.Engine, _model: Model, group: int, pages: list[int]) -> bool:
        """Gives a group its home in the files; False when none of its tensors is on meta."""
        extents = []
        for page in pages:
            slots = self._names[page]
            if slots[0].tensor.is_meta:
                _, entry = self._find(slots)
                extents.append((page, entry[2], entry[3], entry[4]))
        if not extents:
            return False
        engine.give_file_home(group, self.shards, extents)
        return True


def load(model_on_meta: nn.Module, checkpoint: str | Path, device: torch.device | str | int, **options: Any) -> Any:
    """Runs a model straight from its safetensors files: no second copy of the weights in host memory.

    Args:
        model_on_meta: the model with its parameters on meta (see `empty_weights`).
        checkpoint: a .safetensors file, a `.safetensors.index.json`, or a folder that holds either.
        device: where it runs; "cpu" runs a model larger than host memory.
        **options: as `noria.offload` takes them.

    Returns:
        The `Offload` handle.

    Raises:
        IntegrityError: the checkpoint is damaged, or does not hold the model's tensors.
        StorageError: it cannot be read.
        BudgetError: the budget is too small; it names the smallest that works.
    """
    from noria.offloading import settings_for, start

    prefix = getattr(model_on_meta, "base_model_prefix", "")
    homes = FileHomes(checkpoint, ("", f"{prefix}.") if prefix else ("",))
    settings = settings_for(device, **options)
    settings.file_homes = homes
    return start({"": model_on_meta}, settings)
