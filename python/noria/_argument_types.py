"""Types of arguments, checked where a call would otherwise fail deep inside in words that are not the caller's."""

from __future__ import annotations

import numbers
from types import NoneType

_NAMES = {NoneType: "None", numbers.Real: "a number", numbers.Integral: "int"}


def check_types(**arguments: tuple[object, type | tuple[type, ...]]) -> None:
    """Raises TypeError, which names the argument, unless each value is of one of its types; a bool is no number."""
    for name, (value, wanted) in arguments.items():
        kinds = wanted if isinstance(wanted, tuple) else (wanted,)
        if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
            names = " or ".join(_NAMES.get(kind, kind.__name__) for kind in kinds)
            raise TypeError(f"{name} takes {names}, and got {value!r}")
