"""What the simulator reports: unordered accesses, misuse of memory, and the timeline of a run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Access:
    """One side of a race.

    Attributes:
        op: operator or copy by name; "host write" and the like for host code.
        stream: the stream that ran it; -1 for host code.
        write: whether it wrote the bytes.
    """

    op: str
    stream: int
    write: bool


@dataclass(frozen=True)
class Race:
    """Two accesses to the same bytes, at least one of them a write, that nothing puts in order.

    Attributes:
        first: the access that was issued first.
        second: the other one.
        device: index of the device the bytes are on; -1 for pinned host memory.
        begin: address of the first byte in conflict.
        end: address after the last.
        missing_wait: the wait that would put them in order, as a sentence.
    """

    first: Access
    second: Access
    device: int
    begin: int
    end: int
    missing_wait: str


@dataclass(frozen=True)
class Finding:
    """A fault that one operation shows alone: use after free, a block given back twice, and so on.

    Attributes:
        kind: "use-after-free", "out-of-bounds", "unknown-memory", "double-free", "invalid-free" or
            "event-never-recorded".
        op: the operation.
        stream: the stream it was on.
        device: its device.
        begin: address of the first byte concerned.
        end: address after the last.
        text: what happened and what to do, as a sentence.
    """

    kind: str
    op: str
    stream: int
    device: int
    begin: int
    end: int
    text: str


@dataclass(frozen=True)
class Span:
    """One kernel, copy or host wait of the timeline, in virtual seconds.

    Attributes:
        name: the operator, or the name of the copy.
        kind: "kernel", "h2d", "d2h", "d2d", "peer" or "sync".
        device: index of the device.
        stream: the stream; -1 for a host wait.
        engine: the copy engine that did it; -1 for none.
        begin: virtual seconds.
        end: virtual seconds.
        bytes: of copies.
    """

    name: str
    kind: str
    device: int
    stream: int
    engine: int
    begin: float
    end: float
    bytes: int


def race_from(raw: dict[str, Any]) -> Race:
    """The record that the extension gives, as a Race."""
    return Race(**{**raw, "first": Access(**raw["first"]), "second": Access(**raw["second"])})
