"""The handle that `noria.sim.enable()` returns."""

from __future__ import annotations

from numbers import Real
from typing import Any

from noria._argument_types import check_types
from noria.sim.reports import Finding, Race, Span, race_from


class Simulator:
    """The simulated accelerator of this process. All handles are the same one."""

    def __init__(self, extension: Any) -> None:
        self._extension = extension

    def profiles(self) -> dict[str, dict[str, Any]]:
        """The machines that can be simulated; see `noria.sim.profiles`."""
        from noria.sim.configuration import profiles

        return profiles()

    # -- Virtual time

    def clock(self, device: int = 0) -> float:
        """Virtual seconds at which everything issued to `device` is done, the host included."""
        check_types(device=(device, int))
        seconds: float = self._extension.clock(device)
        return seconds

    def host_clock(self) -> float:
        """Virtual seconds that the host has spent: launches, waits, allocations, pageable copies."""
        seconds: float = self._extension.host_clock()
        return seconds

    def advance_host(self, seconds: float) -> None:
        """Adds host time that the simulator cannot see, such as that of Python code or of a disk."""
        check_types(seconds=(seconds, Real))
        self._extension.advance_host(seconds)

    def reset_clock(self) -> None:
        """Lets all outstanding work finish and sets every clock to 0."""
        self._extension.reset_clock()

    # -- Counters

    def stats(self, device: int = 0) -> dict[str, int | float]:
        """Counters of `device` since it was enabled or `reset_stats()`; `allocated` and `reserved` are bytes of now."""
        check_types(device=(device, int))
        counters: dict[str, int | float] = self._extension.stats(device)
        return counters

    def host_stats(self) -> dict[str, int]:
        """Counters of page-locked host memory."""
        counters: dict[str, int] = self._extension.host_stats()
        return counters

    def reset_stats(self, device: int = 0) -> None:
        """Sets the counters of `device` to 0 and its peaks to the current amounts."""
        check_types(device=(device, int))
        self._extension.reset_stats(device)

    # -- Order

    def races(self) -> list[Race]:
        """Unordered pairs of accesses seen so far."""
        return [race_from(raw) for raw in self._extension.races()]

    def findings(self) -> list[Finding]:
        """Uses of freed memory, double frees and the like seen so far."""
        return [Finding(**raw) for raw in self._extension.findings()]

    def clear_reports(self) -> None:
        """Forgets races and findings."""
        self._extension.clear_reports()

    def set_checker(self, mode: str) -> None:
        """Changes what happens at a race: "raise", "record" or "off"."""
        check_types(mode=(mode, str))
        self._extension.set_checker(mode)

    # -- Timeline

    def record_timeline(self, on: bool = True) -> None:
        """Starts or stops recording every kernel, copy and host wait."""
        check_types(on=(on, bool))
        self._extension.record_timeline(on)

    def timeline(self) -> list[Span]:
        """What was recorded, in the order of issue."""
        return [Span(**raw) for raw in self._extension.timeline()]

    def clear_timeline(self) -> None:
        """Forgets what was recorded."""
        self._extension.clear_timeline()

    # -- Faults

    def inject(
        self,
        kind: str,
        after: int = 1,
        *,
        count: int = 1,
        device: int = -1,
        above: int = 0,
        factor: float = 1.0,
        extra_seconds: float = 0.0,
        sticky: bool = True,
    ) -> None:
        """Makes an operation fail.

        Args:
            kind: "oom", "copy_error", "slow_copy" or "pin_failure".
            after: the n-th matching operation from now is the first to fail; 1 is the next.
            count: how many fail from there on; 0: all.
            device: whose operations match; -1: any.
            above: of "oom": only allocations that bring the allocated bytes above this.
            factor: of "slow_copy": how many times longer the copy takes.
            extra_seconds: of "slow_copy": added to its time.
            sticky: of "copy_error": every later synchronisation raises until `clear_error()`; else only the next one.
        """
        check_types(kind=(kind, str), after=(after, int), count=(count, int), device=(device, int), above=(above, int))
        check_types(factor=(factor, Real), extra_seconds=(extra_seconds, Real), sticky=(sticky, bool))
        for name, number in (("after", after), ("count", count), ("above", above)):
            if number < 0:
                raise ValueError(f"{name} must not be negative, and is {number}")
        self._extension.inject(
            kind,
            after=after,
            count=count,
            device=device,
            above=above,
            factor=factor,
            extra_seconds=extra_seconds,
            sticky=sticky,
        )

    def clear_injections(self) -> None:
        """Takes back all faults that have not struck."""
        self._extension.clear_injections()

    def clear_error(self, device: int = 0) -> None:
        """Forgets a sticky error of `device`."""
        check_types(device=(device, int))
        self._extension.clear_error(device)
