"""The random numbers of a backend."""

from __future__ import annotations

from numbers import Integral

import torch

from noria._argument_types import check_types
from noria.device.base import BackendBase


class RandomCalls(BackendBase):
    """Seeds, generators and their state."""

    def manual_seed(self, seed: int) -> None:
        """Seeds the generator of this device index; where it has none, every generator (`torch.manual_seed`)."""
        check_types(seed=(seed, Integral))
        seed = int(seed)
        if self._by_native("generator"):
            assert self._native is not None
            self._native.manual_seed(seed % 2**64)
        elif self._vendor is not None and self._vendor.has("manual_seed"):
            self._vendor.call_here("manual_seed", seed)
        else:
            torch.manual_seed(seed)

    def Generator(self) -> torch.Generator:
        """A new generator that draws on this device."""
        try:
            return torch.Generator(device=self._device)
        except RuntimeError as error:
            raise self._unsupported("Generator", str(error).splitlines()[0]) from error

    def get_rng_state(self) -> torch.Tensor:
        """The state of the generator of this device index, a byte tensor on cpu."""
        if self._by_native("generator"):
            assert self._native is not None
            return self._native.rng_state()
        if self._vendor is not None and self._vendor.has("get_rng_state"):
            state: torch.Tensor = self._vendor.call("get_rng_state")
            return state
        raise self._unsupported("get_rng_state", self.why_not("generator"))

    def set_rng_state(self, state: torch.Tensor) -> None:
        """Puts back a state that `get_rng_state` gave."""
        if not isinstance(state, torch.Tensor):
            raise TypeError(f"a generator's state is a byte tensor, not {state!r}")
        if self._by_native("generator"):
            assert self._native is not None
            self._native.set_rng_state(state)
        elif self._vendor is not None and self._vendor.has("set_rng_state"):
            self._vendor.call_here("set_rng_state", state)
        else:
            raise self._unsupported("set_rng_state", self.why_not("generator"))
