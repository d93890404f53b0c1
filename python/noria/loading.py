"""Starting from safetensors files: a model is built without weights, and they stay on disk until they are used."""

from __future__ import annotations

import errno
import logging
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn

from noria import _C
from noria._model import Model
from noria.errors import IntegrityError, StorageError

_log = logging.getLogger("noria")


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


def old_names(model: nn.Module | None) -> Callable[[str], str]:
    """What turns the names of an old checkpoint into a model's, as transformers does for its own models."""
    transformers = sys.modules.get("transformers")
    if transformers is None or not isinstance(model, transformers.PreTrainedModel):
        return lambda name: name
    try:
        from transformers.conversion_mapping import get_model_conversion_mapping
        from transformers.core_model_loading import WeightRenaming, rename_source_key
    except ImportError:  # before transformers 5
        return lambda name: name
    renamings = [one for one in get_model_conversion_mapping(model) if isinstance(one, WeightRenaming)]
    return lambda name: str(rename_source_key(name, renamings, [])[0])


class FileHomes:
    """Which tensor of a checkpoint is the home of which page.

    A weight on meta has no other home. One that is in memory keeps it unless the file holds the very same bytes, or the
    checkpoint is `authoritative`: then what it holds replaces what is in memory.
    """

    authoritative = False

    def __init__(self, checkpoint: str | Path, model: nn.Module | None = None, root: str = "") -> None:
        """Opens the checkpoint: a .safetensors file, an index, or a folder.

        Args:
            checkpoint: where it is.
            model: whose weights are looked for; says which other names they may have in the file.
            root: the name of the root that it belongs to, among several.
        """
        self._root = f"{root}." if root else ""
        self.shards = _C.ShardSet.open(str(checkpoint))
        rename = old_names(model)
        self._tensors = {rename(name): entry for name, entry in self.shards.tensors.items()}
        prefix = getattr(model, "base_model_prefix", "")
        self._prefixes = ("", f"{prefix}.") if prefix else ("",)
        self._names: dict[int, list[Any]] = {}
        self._table = _C.TensorTable()

    def entry(self, name: str) -> Any:
        """The checkpoint's (dtype, shape, file, offset, bytes) for a tensor of the model, or None."""
        name = name.removeprefix(self._root)
        for prefix in self._prefixes:
            found = self._tensors.get(prefix + name)
            if found is None and prefix and name.startswith(prefix):
                found = self._tensors.get(name.removeprefix(prefix))
            if found is not None:
                return found
        return None

    def check(self, model: Model) -> None:
        """Every tensor on meta must be in the checkpoint, with the same shape. Floating-point types are converted.

        Raises:
            IntegrityError: names what is missing or differs.
        """
        self._names = {}
        for slot in model.slots:
            for leaf in slot.leaves if slot.name.startswith(self._root) else ():
                self._names.setdefault(model.table.page_of(leaf.index), []).append(slot)
        missing = []
        used = set()
        for page, slots in self._names.items():
            if page == _C.NO_PAGE:
                continue
            slot, entry = self._find(slots)
            on_meta = slots[0].tensor.is_meta
            if not on_meta and (entry is None or not self.authoritative):
                continue
            if entry is None:
                missing.append(slots[0].name)
                continue
            used.add(slot.name)
            dtype, shape = entry[0], list(entry[1])
            if shape != list(slot.tensor.shape):
                raise IntegrityError(
                    f"'{slot.name}' is {list(slot.tensor.shape)} in the model and {shape} in the checkpoint"
                )
            if not _C.can_become(dtype, slot.tensor.dtype):
                raise IntegrityError(
                    f"'{slot.name}' is {slot.tensor.dtype} in the model and {dtype} in the checkpoint, and only "
                    "floating-point types are converted; build the model with the checkpoint's dtype"
                )
            if not slot.tensor.is_contiguous():
                raise IntegrityError(
                    f"'{slot.name}' is not contiguous in the model, and checkpoints hold contiguous tensors; build the "
                    "model without memory_format, or offload it from memory"
                )
        if self.authoritative and not used and not missing and self._names:
            there = ", ".join(list(self._tensors)[:3])
            wanted = ", ".join(slots[0].name for slots in list(self._names.values())[:3])
            raise IntegrityError(
                f"the checkpoint holds none of the model's tensors: it has {there}, ..., and the model {wanted}, ..."
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

    def entry_of(self, slots: list[Any]) -> Any:
        """The checkpoint's entry for a tensor that these slots hold; None when it has none, or is another root's."""
        mine = [slot for slot in slots if slot.name.startswith(self._root)]
        return self._find(mine)[1] if mine else None

    def holds(self, tensor: torch.Tensor, entry: Any) -> bool:
        """Whether `tensor` is to be had from the file as it stands there, without a conversion."""
        fits = entry[0] == _C.dtype_name(tensor.dtype) and list(entry[1]) == list(tensor.shape)
        return fits and (tensor.is_meta or self.authoritative or self._same(tensor, entry))

    def prepare(self, _engine: _C.Engine, model: Model) -> None:
        """Checks that the checkpoint fits the model; see `check`."""
        self.check(model)
        self._table = model.table

    def give(self, engine: _C.Engine, group: int, pages: list[int]) -> bool:
        """Gives a group its home in the files; False when it has none there, or not for all of its weights."""
        extents = []
        for page in pages:
            slots = self._names.get(page)
            if slots is None:
                return False  # another root's
            slot, entry = self._find(slots)
            from_file = slots[0].tensor.is_meta or self.authoritative
            if entry is not None and (from_file or self._same(slot.tensor, entry)):
                extents.append((page, entry[2], entry[3], entry[0], slot.tensor.dtype))
        if not extents:
            return False
        engine.give_file_home(group, self.shards, extents)
        for page, *_ in extents:
            self._table.leave_home(page)  # also when the group is brought to memory: the file's bytes count
        return True

    def finish(self) -> None:
        """Lets the model go: whoever keeps the homes must not keep it alive. From now on the model's values count."""
        self._names = {}
        self._table = _C.TensorTable()
        self.authoritative = False

    def _same(self, tensor: torch.Tensor, entry: Any) -> bool:
        dtype, shape, file, offset, _ = entry
        fits = list(shape) == list(tensor.shape) and _C.can_become(dtype, tensor.dtype)
        return fits and bool(_C.holds_bytes_of(self.shards, file, offset, tensor.detach(), dtype))


class ManyHomes:
    """The checkpoints of several roots."""

    def __init__(self, homes: list[FileHomes]) -> None:
        """One for each root."""
        self._homes = homes

    @property
    def each(self) -> list[FileHomes]:
        """The checkpoints, one by one."""
        return self._homes

    def prepare(self, engine: _C.Engine, model: Model) -> None:
        """As `FileHomes.prepare`, for each."""
        for homes in self._homes:
            homes.prepare(engine, model)

    def give(self, engine: _C.Engine, group: int, pages: list[int]) -> bool:
        """As `FileHomes.give`, by the root that the group belongs to."""
        return any(homes.give(engine, group, pages) for homes in self._homes)

    def finish(self) -> None:
        """As `FileHomes.finish`."""
        for homes in self._homes:
            homes.finish()


class FolderHomes:
    """An offload folder of our own, one per component, as the home of every weight."""

    def __init__(self, folder: str | Path, component: str) -> None:
        """The folder of `component` below `folder`; it is made when it is not there."""
        self.folder = Path(folder) / _C.component_folder(component)
        self._store: _C.FolderStore | None = None

    def refuse_unwritable(self) -> None:
        """Raises StorageError when the folder cannot be made or written."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            if not os.access(self.folder, os.W_OK):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(self.folder))
        except OSError as error:
            failure = StorageError(f"cannot write the offload folder {self.folder}: {error}")
            failure.path, failure.errno = str(self.folder), error.errno or 0
            raise failure from error

    def prepare(self, engine: _C.Engine, model: Model) -> None:
        """Uses what the folder holds of this model, or writes it.

        Raises:
            StorageError: it cannot be written (names the path and the errno); the model is as it was.
            ValueError: a weight is not on the cpu.
        """
        self._store = _C.FolderStore.open_or_write(str(self.folder), engine, model.table)

    def give(self, engine: _C.Engine, group: int, _pages: list[int]) -> bool:
        """Gives a group its home in the folder."""
        assert self._store is not None
        self._store.give_home(engine, group)
        return True

    def finish(self) -> None:
        """Nothing to let go: the store knows files only."""


def own_checkpoint(root: nn.Module) -> Path:
    """The folder of safetensors files that a model says it came from.

    Raises:
        ValueError: it says none, or there are none any more.
    """
    config = getattr(root, "config", None)
    for place in (config, root):
        name = getattr(place, "_name_or_path", None) or getattr(place, "name_or_path", None)
        if isinstance(name, str) and name and any(Path(name).glob("*.safetensors")):
            return Path(name)
    raise ValueError(
        f"disk='checkpoint': {type(root).__name__} does not say which folder of safetensors files it came from; use "
        f"noria.load(model_on_meta, checkpoint, device), or disk=FOLDER for a copy of the weights"
    )


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

    if not isinstance(model_on_meta, nn.Module):
        raise TypeError(f"noria.load takes an nn.Module, and got a {type(model_on_meta).__name__}")
    if not isinstance(checkpoint, (str, os.PathLike)):
        raise TypeError(f"the checkpoint must be a path, and is a {type(checkpoint).__name__}")
    if "dtype" in options:
        raise TypeError(
            "noria.load takes no dtype: the weights get the dtypes that model_on_meta has; build it in the one you want"
        )
    if options.get("disk") not in (None, "checkpoint", "mapped"):
        raise ValueError(
            "noria.load streams from the checkpoint itself; disk=FOLDER, a copy of the weights, is for noria.offload"
        )
    homes = FileHomes(checkpoint, model_on_meta)
    homes.authoritative = True
    settings = settings_for(device, **options)
    settings.homes = homes
    return start({"": model_on_meta}, settings)
