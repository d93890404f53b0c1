"""Tells the errors by which a device says that its memory is used up from all others."""

from __future__ import annotations

from typing import Any

import torch

from noria import _C


def error_class(module: Any) -> type[BaseException]:
    """The class to catch: the device module's own where it has one, else PyTorch's."""
    own = getattr(module, "OutOfMemoryError", None)
    return own if isinstance(own, type) and issubclass(own, BaseException) else torch.OutOfMemoryError


def is_out_of_memory(error: BaseException, device_type: str, own_class: type[BaseException]) -> bool:
    """True when `error`, or an error that it was raised `from`, says that memory of this device type is used up.

    Backends without a class for it raise a plain RuntimeError; the table of texts is in C++ (`out_of_memory.cpp`).
    An error that merely happened while another was handled (`__context__`) does not inherit its meaning.
    """
    seen: set[int] = set()
    link: BaseException | None = error
    while link is not None and id(link) not in seen:
        seen.add(id(link))
        if isinstance(link, (torch.OutOfMemoryError, own_class)):
            return True
        if device_type == "cpu" and isinstance(link, MemoryError):
            return True
        if isinstance(link, RuntimeError) and _C.says_out_of_memory(device_type, str(link)):
            return True
        link = link.__cause__
    return False
