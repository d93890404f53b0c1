"""A model as the engine sees it: modules in call order, and the plain tensors behind their parameters and buffers."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from noria import _C

_UNCALLED = (nn.ModuleList, nn.ModuleDict, nn.ParameterList, nn.ParameterDict)
_LISTS = (nn.ModuleList, nn.ModuleDict, nn.Sequential)


@dataclass
class Leaf:
    """A plain tensor: a parameter or buffer itself, or an inner tensor of a wrapper subclass."""

    path: tuple[str, ...]
    index: int


@dataclass
class Slot:
    """A registered parameter or buffer.

    Attributes:
        module: the module that registers it.
        key: its name there.
        name: its dotted name from the root.
        is_buffer: registered as a buffer.
        leaves: the plain tensors behind it.
    """

    module: nn.Module
    key: str
    name: str
    is_buffer: bool
    leaves: list[Leaf] = field(default_factory=list)

    @property
    def registry(self) -> dict[str, Any]:
        """The module's dict that holds the tensor."""
        return self.module._buffers if self.is_buffer else self.module._parameters

    @property
    def tensor(self) -> torch.Tensor:
        """The registered tensor, as it is now."""
        tensor: torch.Tensor = self.registry[self.key]
        return tensor


def is_wrapper(tensor: torch.Tensor) -> bool:
    """Whether the bytes of `tensor` are in inner tensors (torchao, quanto and other wrapper subclasses)."""
    return hasattr(tensor, "__tensor_flatten__") and type(tensor) is not torch.Tensor


def inner_tensors(tensor: torch.Tensor, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], torch.Tensor]]:
    """The plain tensors behind `tensor`, each with the attributes that lead to it."""
    if not is_wrapper(tensor):
        yield path, tensor
        return
    names, _ = tensor.__tensor_flatten__()  # type: ignore[attr-defined]
    for name in names:
        yield from inner_tensors(getattr(tensor, name), (*path, name))


def rebuild(tensor: torch.Tensor, inner: Mapping[tuple[str, ...], torch.Tensor], path: tuple[str, ...] = ()) -> Any:
    """A tensor like `tensor` over other inner tensors."""
    if not is_wrapper(tensor):
        return inner[path]
    names, context = tensor.__tensor_flatten__()  # type: ignore[attr-defined]
    parts = {name: rebuild(getattr(tensor, name), inner, (*path, name)) for name in names}
    return type(tensor).__tensor_unflatten__(parts, context, tensor.size(), tensor.stride())  # type: ignore[attr-defined]


def _without_bytes(tensor: torch.Tensor, dtype: torch.dtype, known: dict[int, torch.Tensor]) -> torch.Tensor:
    """A meta tensor as `tensor` would be with another dtype; what shares a storage goes on sharing one."""
    storage = tensor.untyped_storage()
    key = storage._cdata
    if key not in known:
        known[key] = torch.empty(storage.nbytes() // tensor.element_size(), dtype=dtype, device="meta")
    return known[key].view(dtype).as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())


class Model:
    """The modules of one or several roots, their tensors in a table, and what belongs to what."""

    def __init__(
        self,
        roots: Mapping[str, nn.Module],
        dtype_of: Callable[[torch.dtype], torch.dtype] | None = None,
        apart: Collection[int] = (),
    ) -> None:
        """Walks the roots.

        Args:
            roots: maps a name (may be "") to each.
            dtype_of: plans for the model as it would be with other dtypes; it cannot be managed then.
            apart: identities of registered tensors that are none of the engine's.
        """
        self._apart = frozenset(apart)
        self.modules: list[nn.Module] = []
        self.names: list[str] = []
        self.slots: list[Slot] = []
        self.table = _C.TensorTable()
        self._parents: list[int] = []
        self._slots_of: list[list[Slot]] = []
        self._index: dict[int, int] = {}
        for name, root in roots.items():
            self._walk(root, name, _C.NO_MODULE)
        converted: dict[int, torch.Tensor] = {}
        for slot in self.slots:
            if is_lazy(slot.tensor):
                raise ValueError(f"'{slot.name}' has no shape yet; call the model once before it is offloaded")
            for path, tensor in inner_tensors(slot.tensor):
                if dtype_of is not None:
                    tensor = _without_bytes(tensor, dtype_of(tensor.dtype), converted)
                slot.leaves.append(Leaf(path, self.table.add(tensor, slot.name)))
        self.table.find_pages()
        for name, root in roots.items():
            if isinstance(root, torch.jit.ScriptModule) and not [*root.parameters(), *root.buffers()]:
                raise ValueError(
                    f"the TorchScript module {name or type(root).__name__} has no weights; torch.jit.freeze makes "
                    "constants of them, which cannot be offloaded: offload the module that was frozen"
                )

    def _walk(self, module: nn.Module, name: str, parent: int) -> None:
        if id(module) in self._index:  # registered under a second name
            return
        index = len(self.modules)
        self._index[id(module)] = index
        self.modules.append(module)
        self.names.append(name)
        self._parents.append(parent)
        prefix = f"{name}." if name else ""
        slots = [
            Slot(module, key, prefix + key, is_buffer)
            for registry, is_buffer in ((module._parameters, False), (module._buffers, True))
            for key, tensor in registry.items()
            if tensor is not None and id(tensor) not in self._apart
        ]
        self._slots_of.append(slots)
        self.slots += slots
        for key, child in module._modules.items():
            if child is not None:
                self._walk(child, prefix + key, index)

    def pages_of(self, module: int) -> list[int]:
        """Pages of a module's own tensors, each once."""
        pages = (self.table.page_of(leaf.index) for slot in self._slots_of[module] for leaf in slot.leaves)
        return list(dict.fromkeys(page for page in pages if page != _C.NO_PAGE))

    def group(
        self, granularity: str, blocks_per_group: int, block_modules: list[str], budget: int | None
    ) -> _C.Grouping:
        """Groups of pages, by `noria::Engine::group`.

        Raises:
            ValueError: `block_modules` names a module that is not there.
        """
        nodes = [
            _C.ModuleNode(
                self.names[i],
                self._parents[i],
                isinstance(module, _LISTS),
                not isinstance(module, _UNCALLED),
                self.pages_of(i),
            )
            for i, module in enumerate(self.modules)
        ]
        return _C.make_groups(nodes, self.table, granularity, blocks_per_group, block_modules, budget)

    @property
    def weights_bytes(self) -> int:
        """Bytes of all distinct tensors."""
        return sum(self.table.page_bytes)

    def refuse_meta(self) -> None:
        """Weights that are on meta have no values that could be offloaded.

        Raises:
            ValueError: names the first.
        """
        for slot in self.slots:
            if any(tensor.is_meta for _, tensor in inner_tensors(slot.tensor)) and slot.tensor.numel() > 0:
                raise ValueError(
                    f"'{slot.name}' is on the meta device and has no values; noria.load(model, checkpoint, device) "
                    f"fills it from safetensors files"
                )

    def manage(self, engine: _C.Engine, pages: set[int]) -> None:
        """Turns every tensor with a page in `pages` into a managed one; its old memory is given up."""
        replaced: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}  # of one object under several names
        for slot in self.slots:
            leaves = [leaf for leaf in slot.leaves if self.table.page_of(leaf.index) in pages]
            if not leaves:
                continue
            old = slot.tensor
            if id(old) in replaced:
                slot.registry[slot.key] = replaced[id(old)][1]
                continue
            inner = dict(inner_tensors(old))
            for leaf in leaves:
                inner[leaf.path] = self.table.manage(engine, leaf.index)
            repoint(slot, rebuild(old, inner))
            if slot.tensor is not old:  # it was on meta
                replaced[id(old)] = (old, slot.tensor)

    def move_empty(self, device: torch.device) -> None:
        """Tensors without bytes have no page; they only change their device."""
        for slot in self.slots:
            if all(self.table.page_of(leaf.index) == _C.NO_PAGE for leaf in slot.leaves) and not slot.tensor.is_meta:
                repoint(slot, slot.tensor.detach().to(device))


def _assign_data(old: torch.Tensor, new: torch.Tensor) -> None:
    conjugate, negative = new.is_conj(), new.is_neg()
    # PyTorch would resolve such views before the assignment, and read their bytes for it.
    for tensor in (old, new):
        if conjugate:
            torch._C._set_conj(tensor, False)
        if negative:
            torch._C._set_neg(tensor, False)
    old.data = new
    if conjugate:
        torch._C._set_conj(old, True)
    if negative:
        torch._C._set_neg(old, True)


def repoint(slot: Slot, new: torch.Tensor) -> None:
    """Gives a registered tensor other contents, keeping the object that the program holds."""
    old = slot.tensor
    if new is old:
        return
    with torch.no_grad(), torch.inference_mode(False):
        if old.is_meta and not new.is_meta:
            # A tensor on meta cannot become a real one in place.
            slot.registry[slot.key] = new if slot.is_buffer else nn.Parameter(new, requires_grad=old.requires_grad)
        elif is_wrapper(old):
            replacement = new if slot.is_buffer else nn.Parameter(new, requires_grad=old.requires_grad)
            torch.utils.swap_tensors(old, replacement)
        else:
            _assign_data(old, new)
            if old.grad is not None and old.grad.device != new.device:
                old.grad.data = old.grad.data.to(new.device)
