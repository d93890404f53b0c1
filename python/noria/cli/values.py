"""What the options of the command line take. A value that is wrong whatever the machine is wrong usage: status 2."""

from __future__ import annotations

import argparse
import math
import re
from typing import Any

import torch

from noria._amount import resolve_bytes

# Any amount of free memory will do to tell whether a share is well-formed.
_SOME_BYTES = 1 << 40


class UsageError(ValueError):
    """Options that are right one by one and do not go together."""


def byte_amount(text: str) -> str:
    """Bytes such as 6GiB or 80%, as text: what a share is of depends on the device."""
    try:
        resolve_bytes(text, _SOME_BYTES, "it")
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error).removeprefix("it: ")) from None
    return text


def positive_int(text: str) -> int:
    """A whole number from 1."""
    number = _int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, and is {number}")
    return number


def seed(text: str) -> int:
    """A number that torch.manual_seed takes."""
    number = _int(text)
    if not -(2**63) <= number < 2**64:
        raise argparse.ArgumentTypeError(f"a seed has at most 64 bits; {number} has more")
    return number


def positive_number(text: str) -> float:
    """A finite number above 0."""
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not (math.isfinite(number) and number > 0):
        raise argparse.ArgumentTypeError(f"must be a number above 0, and is {text!r}")
    return number


def element_type(text: str) -> torch.dtype:
    """The floating-point type of that name, e.g. bfloat16."""
    found = getattr(torch, text, None)
    if not isinstance(found, torch.dtype) or not found.is_floating_point:
        raise argparse.ArgumentTypeError(f"must be an element type such as bfloat16, and is {text!r}")
    return found


def device(text: str) -> str:
    """The name of a device that torch knows, or of the simulated one; whether it can be used is seen later."""
    if is_simulated(text):
        if re.fullmatch(r"sim(:\d+)?", text) is None:
            raise argparse.ArgumentTypeError(f"no device is called {text!r}; the simulated ones are sim, sim:1, ...")
        return text
    from noria.device import registry

    try:
        registry.parse_device(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{error}, sim") from None
    return text


def is_simulated(name: str | None) -> bool:
    """Whether a device name means a simulated one."""
    return name is not None and name.split(":")[0] == "sim"


def simulate(name: str, card: str = "rtx4090") -> Any:
    """Enables the simulator with as many devices as `name` asks for."""
    import noria.sim

    return noria.sim.enable(card, devices=int(name.partition(":")[2] or 0) + 1)


def profile(text: str) -> str:
    """The name of a card that the simulator knows."""
    import noria.sim

    known = noria.sim.profiles()
    if text not in known:
        raise argparse.ArgumentTypeError(f"no profile is called {text!r}; there are {', '.join(known)}")
    return text


def _int(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be a whole number, and is {text!r}") from None
