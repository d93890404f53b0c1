"""Byte amounts as arguments."""

from __future__ import annotations

import torch

from noria import _C


def resolve_bytes(amount: int | str, free_bytes: int, argument: str) -> int:
    """Bytes that an argument means.

    Args:
        amount: bytes, or text like "6GiB" or "80%".
        free_bytes: what a percentage is taken of.
        argument: the argument's name, for the error.

    Raises:
        TypeError: neither int nor str.
        ValueError: not an amount of memory.
    """
    if isinstance(amount, bool) or not isinstance(amount, (int, str)):
        raise TypeError(f"{argument} takes bytes as int or a string like '6GiB' or '80%', and got {amount!r}")
    if isinstance(amount, int):
        if amount < 0:
            raise ValueError(f"{argument} is {amount}; bytes cannot be negative")
        return amount
    try:
        return int(_C.parse_byte_amount(amount, free_bytes))
    except ValueError as error:
        raise ValueError(f"{argument}: {error}") from None


def free_bytes(device: torch.device) -> int:
    """Free memory of `device`, bytes."""
    from noria.device import TorchDeviceBackend

    return int(TorchDeviceBackend(device).mem_get_info()[0])
