"""Running a model whose weights do not fit the device: `offload`, `load` and the handle they give."""

from __future__ import annotations

import dataclasses
import os
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
from torch import nn

from noria import _C, _managed
from noria._amount import free_bytes, resolve_bytes
from noria._model import Model
from noria.errors import Error
from noria.loading import FileHomes, FolderHomes, ManyHomes, own_checkpoint
from noria.mapped import MappedWeights

# Of what the device has free, kept for activations until they are measured (API: `reserve`).
_DEFAULT_RESERVE = 0.2
_ANY_AMOUNT = 1 << 62
_PAGE = 4096  # what the system locks is whole pages
_GRANULARITIES = {
    "auto": "auto",
    "block": "block",
    "leaf": "leaf",
    "block_level": "block",
    "leaf_level": "leaf",
}


@dataclasses.dataclass(frozen=True)
class Status:
    """What an engine holds and has done. Bytes and seconds; counts since offloading began.

    Attributes:
        device: the onload device.
        budget_bytes: weights allowed on it at once.
        weights_bytes: all managed weights.
        resident_bytes: weights that stay on the device.
        streamed_bytes: weights that come and go.
        device_bytes: device memory taken now.
        peak_device_bytes: the most ever taken.
        host_pinned_bytes: page-locked host memory booked.
        host_pageable_bytes: other host memory that holds weights.
        disk_bytes: weights whose home is a file.
        passes: calls of a root module.
        groups: per group its name, bytes, tier, whether resident, loads, stalls, stall_seconds, dirty.
        bytes_in: bytes copied to the device.
        bytes_out: bytes of modified weights copied back.
        loads: copies to the device, one per group and load.
        stalls: times that the device waited for a load.
        stall_seconds: how long it waited.
        host_syncs: times that the engine made the host wait for the device.
        net_faults: weights that an operator needed and no hook had brought.
        recompiles: of compiled blocks, caused by offloading.
    """

    device: str
    budget_bytes: int
    weights_bytes: int
    resident_bytes: int
    streamed_bytes: int
    device_bytes: int
    peak_device_bytes: int
    host_pinned_bytes: int
    host_pageable_bytes: int
    disk_bytes: int
    passes: int
    groups: list[dict[str, Any]]
    bytes_in: int
    bytes_out: int
    loads: int
    stalls: int
    stall_seconds: float
    host_syncs: int
    net_faults: int
    recompiles: int = 0

    def to_dict(self) -> dict[str, Any]:
        """The same as plain data, ready for JSON."""
        return dataclasses.asdict(self)


@dataclasses.dataclass
class Settings:
    """How a model is offloaded: everything needed to do it again."""

    device: torch.device
    budget: int | str | None = "auto"
    granularity: str = "auto"
    blocks_per_group: int = 1
    block_modules: list[str] = dataclasses.field(default_factory=list)
    unmoved_kwargs: set[str] = dataclasses.field(default_factory=set)
    host_budget: int | str | None = None
    pin: bool | None = None
    use_streams: bool = True
    low_memory: bool = False
    verify: bool = False
    trigger: str = "modules"
    reserve: int | str | None = None
    device_limit: int | str | None = None
    disk: str | None = None
    homes: Any = None  # a loading.FileHomes or FolderHomes, when weights come from files

    def describe(self) -> str:
        """The settings that differ from the defaults, for messages."""
        parts = [f"device={str(self.device)!r}", f"budget={self.budget!r}", f"granularity={self.granularity!r}"]
        return ", ".join(parts)

    def budget_bytes(self, model: Model, held_bytes: int = 0) -> int:
        """Bytes of weights allowed on the device at once.

        Args:
            model: what shall be offloaded.
            held_bytes: device memory that is taken now and will be free by then.

        Raises:
            TypeError: not an amount.
            ValueError: not an amount of memory.
        """
        free = free_bytes(self.device) + held_bytes if self._needs_free() else 0
        if self.device_limit is not None:
            limit = resolve_bytes(self.device_limit, free, "device_limit")
            reserve = int(limit * _DEFAULT_RESERVE) if self.reserve is None else self._reserve_bytes(free)
            limit = max(limit - reserve, 0)
        else:
            limit = _ANY_AMOUNT
        if self.budget == "auto" or self.budget is None:
            if self.device_limit is not None:
                return limit
            reserve = int(free * _DEFAULT_RESERVE) if self.reserve is None else self._reserve_bytes(free)
            return max(free - reserve, 0)
        return min(resolve_bytes(self.budget, free, "budget"), limit)

    def _is_dry_run(self) -> bool:
        if self.device.type != "sim":
            return False
        from noria.sim.configuration import is_dry

        return is_dry()

    def _reserve_bytes(self, free: int) -> int:
        assert self.reserve is not None
        return resolve_bytes(self.reserve, free, "reserve")

    def _needs_free(self) -> bool:
        amounts = (self.budget, self.reserve, self.device_limit)
        return self.budget in ("auto", None) or any(isinstance(a, str) and a.strip().endswith("%") for a in amounts)

    def pinned_limit(self) -> int:
        """At most this much host memory is page-locked, bytes."""
        if self.host_budget is None and self._is_dry_run():
            return _ANY_AMOUNT  # addresses alone
        available = free_bytes(torch.device("cpu"))
        half = available // 2
        return (
            half
            if self.host_budget is None
            else min(resolve_bytes(self.host_budget, available, "host_budget"), available)
        )

    def _plan(self, model: Model, held_bytes: int = 0) -> tuple[_C.Engine, _C.Grouping]:
        """An engine for the model that has taken nothing yet."""
        if not isinstance(self.homes, FileHomes) and not self._is_dry_run():
            model.refuse_meta()
        fixed = None if self.budget == "ring" else self.budget_bytes(model, held_bytes)
        grouping = model.group(self.granularity, self.blocks_per_group, self.block_modules, fixed)
        budget = _C.ring_bytes(model.table, grouping, 2 if self.use_streams else 1) if fixed is None else fixed
        engine = _C.Engine.create(
            self.device,
            budget,
            model.table,
            grouping,
            depth=2,
            pin=self.pin,
            pinned_limit=self.pinned_limit(),
            use_streams=self.use_streams,
            low_memory=self.low_memory,
            verify=self.verify,
        )
        return engine, grouping

    def _homes(self, roots: Mapping[str, nn.Module]) -> Any:
        if self.homes is not None or self.disk is None:
            return self.homes
        if self.disk in ("checkpoint", "mapped"):
            return ManyHomes([FileHomes(own_checkpoint(root), root, name) for name, root in roots.items()])
        component = "+".join(name or type(root).__name__ for name, root in roots.items())
        return FolderHomes(self.disk, component)

    def _host_room(self) -> int:
        """Bytes of host memory for groups that would otherwise stay on disk. None on the cpu, whose memory it is."""
        if self.device.type == "cpu" or self.host_budget is None:
            return 0
        return self.pinned_limit()

    def check(
        self,
        roots: Mapping[str, nn.Module],
        *,
        held_bytes: int = 0,
        dtype_of: Callable[[torch.dtype], torch.dtype] | None = None,
    ) -> None:
        """Raises what `enable` would, and changes nothing.

        Args:
            roots: what shall be offloaded; may be managed already.
            held_bytes: device memory that is taken now and will be free by then.
            dtype_of: the dtype that tensors will have by then, by their present one.
        """
        homes = None if self._is_dry_run() else self._homes(roots)
        apart = MappedWeights.planned(roots, _each(homes)) if self.disk == "mapped" else ()
        self._plan(Model(roots, dtype_of, apart), held_bytes)
        if isinstance(homes, FolderHomes):
            homes.refuse_unwritable()

    def enable(self, offload: Offload, roots: Mapping[str, nn.Module]) -> None:
        """Takes the roots under management and fills `offload`. On failure everything is as it was before."""
        homes = None if self._is_dry_run() else self._homes(roots)
        mapped = MappedWeights.take(roots, _each(homes)) if self.disk == "mapped" else MappedWeights()
        try:
            model = Model(roots, apart=mapped.tensors)
            engine, grouping = self._plan(model)
            if homes is not None:
                homes.prepare(engine, model)
        except BaseException:
            mapped.undo()
            raise
        if self.device.type == "cpu":
            _managed.list_evicted_weights()
        offload._mapped = mapped
        offload._settings = self
        offload._engine = engine
        offload._roots = {name: weakref.ref(root) for name, root in roots.items()}
        offload._handles = []
        try:
            room = self._host_room() if homes is not None else 0
            for group, pages in enumerate(grouping.group_pages):
                if homes is None or not homes.give(engine, group, pages):
                    engine.give_memory_home(group)
                elif (booked := -(-engine.group_bytes(group) // _PAGE) * _PAGE) <= room:
                    engine.bring_home(group)
                    room -= booked
                model.manage(engine, set(pages))
            model.move_empty(self.device)
            if homes is not None:
                homes.finish()
            engine.start()
            offload._attach(model, grouping)
        except BaseException:
            mapped.undo()
            offload._mapped = MappedWeights()
            offload._removed = False
            offload.remove("cpu")
            raise
        mapped.settle()
        offload._removed = False


class Offload:
    """A model under management. The engine lives as long as the model; dropping the handle changes nothing."""

    _settings: Settings
    _engine: _C.Engine
    _roots: dict[str, weakref.ref[nn.Module]]
    _handles: list[Any]

    def __init__(self) -> None:
        """Made by `offload`, `load` and `apply_group_offloading`."""
        self._removed = True
        self._mapped = MappedWeights()
        self._pickled: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
        self._hosts: weakref.ref[_C.HostTensors] | None = None

    @property
    def device(self) -> torch.device:
        """The onload device, with its index."""
        device: torch.device = self._engine.device
        return device

    @property
    def roots(self) -> list[nn.Module]:
        """The managed root modules that are still alive."""
        return [root for reference in self._roots.values() if (root := reference()) is not None]

    @property
    def root_names(self) -> list[str]:
        """Names of the roots, in the order of `roots`."""
        return [name for name, reference in self._roots.items() if reference() is not None]

    def status(self) -> Status:
        """What the engine holds and has done."""
        values = self._engine.status()
        values.pop("order_surprises")
        for name, tensor in self._mapped.tensors.values():
            row = {"name": name, "bytes": tensor.nbytes, "tier": "mapped", "resident": False, "dirty": False}
            values["groups"].append({**row, "loads": 0, "stalls": 0, "stall_seconds": 0.0})
            values["weights_bytes"] += tensor.nbytes
            values["disk_bytes"] += tensor.nbytes
        return Status(**values)

    def resize(self, budget: int | str) -> None:
        """Changes the budget, between passes or during one; it takes effect at the next group boundary.

        Args:
            budget: bytes, or "6GiB", "80%" (of what the device has free, with what is taken now).

        Raises:
            BudgetError: below the smallest that works; the old budget stays.
        """
        self._check()
        free = 0
        if isinstance(budget, str) and budget.strip().endswith("%"):
            free = free_bytes(self.device) + self.status().device_bytes
        amount = resolve_bytes(budget, free, "budget")
        self._engine.resize(amount)
        self._settings = dataclasses.replace(self._settings, budget=amount)

    def flush(self) -> None:
        """Writes modified weights back to their host home and waits for it."""
        self._check()
        self._engine.flush()

    @contextmanager
    def resident(self, *modules: nn.Module) -> Iterator[None]:
        """These modules' weights are on the device and stay there inside the context.

        Raises:
            BudgetError: they do not fit the budget together.
            ValueError: a module of another model.
        """
        self._check()
        ours = {id(module) for root in self.roots for module in root.modules()}
        for module in modules:
            if not isinstance(module, nn.Module):
                raise TypeError(f"resident() takes modules of the offloaded model, and got a {type(module).__name__}")
            if id(module) not in ours:
                raise ValueError(f"resident(): this {type(module).__name__} is no part of the model of this handle")
        groups = sorted(
            {
                _C.group_of(leaf)
                for module in modules
                for child in module.modules()
                for slot in _managed.own_slots(child)
                for leaf in _C_leaves(slot.tensor)
            }
        )
        engine = self._engine  # adapters that come meanwhile bring another
        engine.hold(groups)
        try:
            yield
        finally:
            engine.let_go(groups)

    @contextmanager
    def trace(self, path: str | Path) -> Iterator[None]:
        """Writes a Chrome-trace JSON of the calls inside: one row per stream, one slice per load and use."""
        self._check()
        self._engine.start_trace()
        try:
            yield
        finally:
            _C.write_trace(str(path), self._engine.stop_trace())

    def remove(self, device: str | torch.device = "cpu") -> None:
        """Ends offloading: the original parameter objects, with their values, on `device`. Safe twice."""
        wanted = torch.device(device)
        if wanted.type != "meta":
            with_index(wanted)  # one that is not here is refused while nothing has happened yet
        if self._removed:
            return
        self._removed = True
        try:
            self._bring_everything_home()
        except BaseException:
            self._removed = False  # what is not home yet can be asked for again
            raise
        for root in self.roots:
            tensors = [*root.parameters(), *root.buffers()]
            if any(tensor.device != wanted for tensor in tensors):
                root.to(wanted)

    def _bring_everything_home(self) -> None:
        self._engine.flush()
        for handle in self._handles:
            handle.remove()
        self._handles = []
        self._mapped.bring_home()
        hosts = self._host_tensors()
        seen: set[int] = set()
        for root in self.roots:
            for module in root.modules():
                if id(module) not in seen:
                    seen.add(id(module))
                    _managed.uninstall(module)
                    _managed.bring_home(module, self._engine, hosts)
        for page in range(self._engine.page_count):
            if self._engine.page_alive(page):  # somebody else holds the storage: a tensor saved for backward, a view
                self._engine.detach_to_device(page)
        self._engine.stop()

    def __enter__(self) -> Offload:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.remove()

    def _check(self) -> None:
        if self._removed:
            raise Error("offloading of this model has ended; call noria.offload again")

    def _host_tensors(self) -> _C.HostTensors:
        known = self._hosts() if self._hosts is not None else None
        if known is None:
            known = _C.HostTensors()
            self._hosts = weakref.ref(known)
        return known

    def _refresh(self) -> bool:
        """The model has changed (adapters, replaced layers): takes it up anew, with the same settings.

        False inside a transform of torch.func or a level of forward-mode AD, whose tensors must not meet the weights:
        then the next call outside does it.
        """
        in_transform = torch._C._functorch.peek_interpreter_stack() is not None
        if in_transform or torch.autograd.forward_ad._current_level >= 0:
            return False
        roots = dict(zip(self.root_names, self.roots, strict=True))
        settings = self._settings
        settings.check(roots, held_bytes=self.status().device_bytes)
        self.remove("cpu")
        settings.enable(self, roots)
        return True

    def _attach(self, model: Model, grouping: _C.Grouping) -> None:
        roots = {id(root) for root in self.roots}
        slots_below: dict[int, list[Any]] = {}
        for index, module in enumerate(model.modules):
            _managed.install(module, self)
            needs = grouping.needs[index]
            compiled = isinstance(module, torch.jit.ScriptModule)
            if compiled or self._settings.trigger != "modules" or (not needs and id(module) not in roots):
                continue
            unmoved = set(self._settings.unmoved_kwargs) if id(module) in roots else set()
            hook = _C.ModuleHook(self._engine, index, self._refresh, unmoved)
            for child in module.modules():
                entries = slots_below.get(id(child))
                if entries is None:
                    entries = [
                        (registry, key)
                        for registry in (child._parameters, child._buffers, child._modules)
                        if isinstance(registry, dict)  # those of a compiled module are not
                        for key, value in registry.items()
                        if value is not None
                    ]
                    slots_below[id(child)] = entries
                for registry, key in entries:
                    hook.watch(registry, key)
            self._handles.append(module.register_forward_pre_hook(hook.before, prepend=True, with_kwargs=True))
            self._handles.append(module.register_forward_hook(hook.after, always_call=True))


def _each(homes: Any) -> list[FileHomes]:
    return homes.each if isinstance(homes, ManyHomes) else [homes]


def _C_leaves(tensor: torch.Tensor) -> list[torch.Tensor]:
    from noria._model import inner_tensors

    return [leaf for _, leaf in inner_tensors(tensor) if _C.is_managed(leaf)]


def _roots_of(target: Any) -> dict[str, nn.Module]:
    if isinstance(target, nn.Module):
        return {"": target}
    if isinstance(target, Mapping):
        components = dict(target)
    elif isinstance(getattr(target, "components", None), dict):
        components = target.components
    else:
        raise TypeError(
            f"noria.offload takes an nn.Module, a Diffusers pipeline or a mapping of names to modules, and got "
            f"{type(target).__name__}"
        )
    roots = {name: module for name, module in components.items() if isinstance(module, nn.Module)}
    if not roots:
        raise ValueError("there is no nn.Module among the components")
    return roots


def check_free_to_manage(roots: Mapping[str, nn.Module], settings: Settings, *, strict_accelerate: bool) -> None:
    """Refuses modules that another offloader, or another handle of ours, has already.

    Raises:
        ValueError: names the module and both configurations.
    """
    for root_name, root in roots.items():
        for name, module in root.named_modules():
            where = f"{root_name}.{name}".strip(".") or "the root"
            hook = getattr(module, "_hf_hook", None)
            hooks = getattr(hook, "hooks", [hook])
            for one in hooks:
                kind = type(one).__name__
                if kind == "CpuOffload" or (kind == "AlignDevicesHook" and (strict_accelerate or one.offload)):
                    raise ValueError(
                        f"Cannot apply group offloading to a module that is already offloaded by accelerate; remove "
                        f"that first (accelerate.hooks.remove_hook_from_module). Offending module: {where} ({kind})"
                    )
            registry = getattr(module, "_diffusers_hook", None)
            if registry is not None and any("group_offloading" in key for key in registry.hooks):
                raise ValueError(f"{where} is already offloaded by Diffusers; disable that first")
            owner: Offload | None = module.__dict__.get("_noria_offload")
            if owner is not None and not owner._removed and set(map(id, owner.roots)) != set(map(id, roots.values())):
                raise ValueError(
                    f"{where} is already offloaded by noria ({owner._settings.describe()}) as a part of another "
                    f"target; the new call wants {settings.describe()}. Call remove() on the first handle"
                )


def start(roots: Mapping[str, nn.Module], settings: Settings, *, strict_accelerate: bool = False) -> Offload:
    """Takes the roots under management; reconfigures them if they are under it already."""
    check_free_to_manage(roots, settings, strict_accelerate=strict_accelerate)
    owners = {id(owner): owner for root in roots.values() if (owner := root.__dict__.get("_noria_offload")) is not None}
    if owners:
        held = sum(owner.status().device_bytes for owner in owners.values() if owner.device == settings.device)
        settings.check(roots, held_bytes=held)
    for owner in owners.values():
        owner.remove("cpu")
    handle = Offload()
    settings.enable(handle, roots)
    return handle


def with_index(device: torch.device | str | int) -> torch.device:
    """`device` with an index where its type has several.

    Raises:
        TypeError, ValueError: not a device that is here.
    """
    from noria.device import TorchDeviceBackend

    return TorchDeviceBackend(device).device


def settings_for(
    device: torch.device | str | int,
    *,
    budget: int | str | None = "auto",
    host_budget: int | str | None = None,
    disk: str | Path | None = None,
    granularity: str = "auto",
    trigger: str = "modules",
    training: bool = False,
    reserve: int | str | None = None,
    verify: bool = False,
    pin: bool | None = None,
    device_limit: int | str | None = None,
) -> Settings:
    """The arguments of `offload`, checked."""
    if granularity not in _GRANULARITIES:
        raise ValueError(f"granularity must be one of {', '.join(_GRANULARITIES)}, and is {granularity!r}")
    if trigger not in ("modules", "ops"):
        raise ValueError(f"trigger must be 'modules' or 'ops', and is {trigger!r}")
    if pin is not None and not isinstance(pin, bool):
        raise TypeError(f"pin must be True, False or None, and is {pin!r}")
    if disk is not None and not isinstance(disk, (str, os.PathLike)):
        raise TypeError(f"disk must be a folder or 'checkpoint', and is a {type(disk).__name__}")
    if disk is not None and not str(disk):
        raise ValueError("disk must be a folder or 'checkpoint', and is empty; name the current folder '.'")
    onload_device = with_index(device)
    if onload_device.type == "meta":
        raise ValueError("the meta device has no memory; offload to the device that shall compute")
    if disk == "mapped" and onload_device.type != "cpu":
        raise ValueError("disk='mapped' is for the cpu device; for others disk='checkpoint' reads the same files")
    return Settings(
        device=onload_device,
        disk=None if disk is None else str(disk),
        budget=budget,
        granularity=_GRANULARITIES[granularity],
        host_budget=host_budget,
        pin=pin,
        verify=verify,
        trigger=trigger,
        reserve=reserve,
        device_limit=device_limit,
    )


def offload(
    target: Any,
    device: torch.device | str | int,
    *,
    budget: int | str | None = "auto",
    host_budget: int | str | None = None,
    disk: str | Path | None = None,
    granularity: str = "auto",
    trigger: str = "modules",
    training: bool = False,
    reserve: int | str | None = None,
    verify: bool = False,
    pin: bool | None = None,
    device_limit: int | str | None = None,
) -> Offload:
    """Runs `target` on `device` with at most `budget` bytes of its weights there at once.

    Args:
        target: an nn.Module, a Diffusers pipeline (all components under one budget), or a mapping of names to modules.
        device: where it runs. Inputs are moved there.
        budget: bytes of weights on the device at once, residents and ring together; an int, "6GiB", "80%" (of what is
            free now) or "auto" (what is free, less `reserve`). The smallest that works is the largest set of groups in
            use together.
        host_budget: bytes of host memory that may be page-locked; None: half of what is available. With a disk tier,
            also how much of the weights stays in host memory; None: nothing.
        disk: a folder for the weights that then need no host memory: written once, and used again by later runs with
            the same weights. "checkpoint": the model's own safetensors files in place; a weight that differs from them
            stays in memory. "mapped" (cpu only): the same through private mappings where the alignment allows; the
            budget does not bound those, and whoever truncates the files kills the process (see `noria.mapped`).
        granularity: "auto", "block" or "leaf".
        trigger: "modules": forward hooks, with the operator net behind them; "ops": no hooks at all.
        training: says that backward passes will come. They are right, and their order is learned, without it too.
        reserve: bytes kept for activations when `budget` is "auto"; None: 20 % of what is free.
        verify: poison freed ranges, and compare device bytes with the host copy on every load.
        pin: page-lock the host copy: True, False, or None to let the engine choose.
        device_limit: a cap on weights and activations together.

    Returns:
        The handle. It may be dropped.

    Raises:
        BudgetError: the budget is too small; it names the smallest that works.
        ValueError, TypeError: wrong arguments, or the model is offloaded by something else.
    """
    settings = settings_for(
        device,
        budget=budget,
        host_budget=host_budget,
        disk=disk,
        granularity=granularity,
        trigger=trigger,
        training=training,
        reserve=reserve,
        verify=verify,
        pin=pin,
        device_limit=device_limit,
    )
    return start(_roots_of(target), settings)
