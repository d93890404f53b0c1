# Written by `make stubs` from the extension; do not edit.
"""
noria's engine; the public names are in the package noria
"""

from __future__ import annotations

import collections.abc
import typing

__all__: list[str] = ["evicted_prefix", "format_bytes", "is_share", "parse_byte_amount", "set_log_sink", "torch_minor"]

def format_bytes(bytes: typing.SupportsInt | typing.SupportsIndex) -> str: ...
def is_share(text: str) -> bool: ...
def parse_byte_amount(text: str, free_bytes: typing.SupportsInt | typing.SupportsIndex) -> int:
    """
    Bytes that `text` means; a percentage is taken of `free_bytes`.
    """

def set_log_sink(sink: collections.abc.Callable) -> None: ...

__version__: str = "0.1.0"
evicted_prefix: str = "EvictedWeightError: "
torch_minor: str = "2.13"
