"""What a module with managed weights does when it is copied, pickled, saved or moved."""

from __future__ import annotations

import copy
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from noria import _C
from noria._model import Slot, inner_tensors, rebuild, repoint

if TYPE_CHECKING:
    from noria.offloading import Offload

_ATTRIBUTES = ("__deepcopy__", "__reduce_ex__", "_apply", "_noria_offload", "_save_to_state_dict")
_HOOK_REGISTRIES = (
    "_forward_pre_hooks",
    "_forward_pre_hooks_with_kwargs",
    "_forward_hooks",
    "_forward_hooks_with_kwargs",
    "_forward_hooks_always_called",
)


def is_managed(tensor: torch.Tensor | None) -> bool:
    """Whether any byte of `tensor` is paged by an engine."""
    return tensor is not None and any(_C.is_managed(inner) for _, inner in inner_tensors(tensor))


def must_come_home(tensor: torch.Tensor | None) -> bool:
    """Managed, or without bytes and moved to the onload device with the rest."""
    return is_managed(tensor) or (
        tensor is not None and tensor.numel() == 0 and tensor.device.type not in ("cpu", "meta")
    )


def host_copy(tensor: torch.Tensor, hosts: _C.HostTensors) -> Any:
    """`tensor` on the cpu, over its host home; tensors that share bytes share them there too."""
    inner = {
        path: hosts.of(leaf) if _C.is_managed(leaf) else leaf.detach().cpu() for path, leaf in inner_tensors(tensor)
    }
    return rebuild(tensor, inner)


def _tolist(tensor: torch.Tensor) -> Any:
    """`Tensor.tolist`, which printing uses too, for weights that are not there as well."""
    return _pytorchs_tolist(tensor.detach().clone() if is_managed(tensor) else tensor)


_pytorchs_tolist = torch.Tensor.tolist


def list_evicted_weights() -> None:
    """From now on `tolist` and printing work for weights of the cpu device that are not in memory.

    Elsewhere PyTorch brings values to the cpu with an operator, which the net sees.
    """
    if torch.Tensor.tolist is not _tolist:
        torch.Tensor.tolist = _tolist  # type: ignore[assignment, method-assign]


def install(module: nn.Module, offload: Offload) -> None:
    """Gives `module` its behaviour while it is managed."""
    this = weakref.ref(module)
    module.__dict__["_noria_offload"] = offload
    if isinstance(module, torch.jit.ScriptModule):
        return  # compiled: it takes no hooks, and the operator net serves it
    module.__dict__["__deepcopy__"] = lambda memo: _deepcopy(this(), memo)
    module.__dict__["__reduce_ex__"] = lambda protocol: _reduce(this(), protocol)
    module.__dict__["_apply"] = lambda fn, recurse=True: _apply(this(), fn, recurse)
    module.__dict__["_save_to_state_dict"] = lambda *where: _save_to_state_dict(this(), *where)


def uninstall(module: nn.Module) -> None:
    """Takes away what `install` gave."""
    for name in _ATTRIBUTES:
        module.__dict__.pop(name, None)


def own_slots(module: nn.Module) -> list[Slot]:
    """The module's registered tensors."""
    return [
        Slot(module, key, key, is_buffer)
        for registry, is_buffer in ((module._parameters, False), (module._buffers, True))
        for key, tensor in registry.items()
        if tensor is not None
    ]


def bring_home(module: nn.Module, engine: _C.Engine, hosts: _C.HostTensors) -> None:
    """Makes the module's own managed tensors ordinary cpu tensors over their host homes, the same objects as before."""
    for slot in own_slots(module):
        old = slot.tensor
        if not must_come_home(old):
            continue
        if engine.device.type == "cpu":
            for _, leaf in inner_tensors(old):
                _C.detach_to_home(leaf)
        else:
            repoint(slot, host_copy(old, hosts))


def _save_to_state_dict(module: Any, state: dict[str, Any], prefix: str, keep_vars: bool) -> None:
    type(module)._save_to_state_dict(module, state, prefix, keep_vars)
    hosts = _C.HostTensors()
    for slot in own_slots(module):
        value = state.get(prefix + slot.key)
        if isinstance(value, torch.Tensor) and must_come_home(value):
            state[prefix + slot.key] = host_copy(value, hosts)


def _plain_state(module: nn.Module) -> dict[str, Any]:
    """The module's `__dict__` as it would be had it never been managed; tensors not yet replaced."""
    state = {name: value for name, value in module.__dict__.items() if name not in _ATTRIBUTES}
    ours = {
        key
        for key, hook in [*module._forward_pre_hooks.items(), *module._forward_hooks.items()]
        if isinstance(getattr(hook, "__self__", None), _C.ModuleHook)
    }
    for name in _HOOK_REGISTRIES:
        registry = state[name]
        state[name] = type(registry)((key, hook) for key, hook in registry.items() if key not in ours)
    return state


def _cpu_version(tensor: torch.Tensor, hosts: _C.HostTensors, *, own_memory: bool) -> torch.Tensor:
    host = host_copy(tensor, hosts)
    if own_memory:
        host = host.clone()
    if isinstance(tensor, nn.Parameter):
        return nn.Parameter(host, requires_grad=tensor.requires_grad)
    return host  # type: ignore[no-any-return]


def _plain(module: Any) -> nn.Module:
    """A module that was never managed, with the state of `module`: its tensors on the cpu over their host homes."""
    offload: Offload = module._noria_offload
    state = _plain_state(module)
    for name in ("_parameters", "_buffers"):
        replaced = {}
        for key, tensor in state[name].items():
            if must_come_home(tensor):
                # One object per tensor for as long as somebody holds it: tied weights stay tied.
                known = offload._pickled.get(id(tensor))
                if known is None:
                    known = _cpu_version(tensor, offload._host_tensors(), own_memory=False)
                    offload._pickled[id(tensor)] = known
                tensor = known
            replaced[key] = tensor
        state[name] = replaced
    plain = copy_new(type(module))
    plain.__dict__.update(state)
    return plain


def _copies_itself(cls: type[nn.Module]) -> bool:
    names = ("__deepcopy__", "__reduce_ex__", "__reduce__", "__getstate__")
    return any(getattr(cls, name, None) is not getattr(nn.Module, name, None) for name in names)


def _deepcopy(module: Any, memo: dict[int, Any]) -> nn.Module:
    if _copies_itself(type(module)):
        own: nn.Module = copy.deepcopy(_plain(module), memo)
        memo[id(module)] = own
        return own
    hosts = _C.HostTensors()
    new = copy_new(type(module))
    memo[id(module)] = new
    state = _plain_state(module)
    slots = own_slots(module)
    for child in module.modules():
        if "_noria_offload" not in child.__dict__:  # came after the model was offloaded
            slots += own_slots(child)
    device = module._noria_offload.device
    for slot in slots:
        tensor = slot.tensor
        is_there = device.type != "cpu" and tensor.device == device
        if id(tensor) not in memo and (is_there or must_come_home(tensor)):
            memo[id(tensor)] = _cpu_version(tensor, hosts, own_memory=True)
            memo[id(memo)] = [*memo.get(id(memo), []), tensor]  # keeps the id taken, as copy.deepcopy does
    new.__setstate__(copy.deepcopy(state, memo))
    return new


def _reduce(module: Any, protocol: int) -> Any:
    return _plain(module).__reduce_ex__(protocol)


def copy_new(cls: type[nn.Module]) -> nn.Module:
    """An empty module for the unpickler to fill."""
    return cls.__new__(cls)


def _apply(module: Any, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool) -> nn.Module:
    """`to`, `half`, `cuda`, ...: what `fn` wants is seen from what it does to an empty tensor."""
    offload: Offload = module._noria_offload
    device = offload.device
    with torch.no_grad():
        probe = torch.empty(0, dtype=torch.float32, device=device)
        wanted = fn(probe)
        half = fn(torch.empty(0, dtype=torch.float16, device=device))
        image = torch.empty(1, 2, 2, 2, device=device)
        same_format = fn(image).stride() == image.stride()
    same_dtype = wanted.dtype == torch.float32 and half.dtype == torch.float16
    if same_dtype and same_format and wanted.device == device:
        return module  # type: ignore[no-any-return]
    if module not in offload.roots:
        raise RuntimeError(
            "this module is a part of a model offloaded by noria, and cannot change its device, dtype or memory format "
            "by itself; "
            "change the whole model, or end offloading with remove() first"
        )
    settings = offload._settings
    if wanted.device == device:
        with torch.no_grad():
            settings.check(
                dict(zip(offload.root_names, offload.roots, strict=True)),
                held_bytes=offload.status().device_bytes,
                dtype_of=lambda dtype: fn(torch.empty(0, dtype=dtype, device=device)).dtype,
            )
    offload.remove("cpu")
    # One weight at a time: all of them may be more than the device holds.
    nn.Module._apply(module, (lambda t: fn(t).cpu()) if wanted.device == device else fn, recurse)
    if wanted.device == device:
        settings.enable(offload, dict(zip(offload.root_names, offload.roots, strict=True)))
    return module  # type: ignore[no-any-return]
