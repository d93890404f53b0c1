"""Random numbers. A simulated device draws what the CPU draws from the same seed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import overload

import torch

from noria import _sim
from noria.sim.device_module.devices import DeviceLike, current_device, device_count, device_index


class _DefaultGenerators(Sequence[torch.Generator]):
    """The default generator of each device, looked up when asked for."""

    @overload
    def __getitem__(self, index: int) -> torch.Generator: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[torch.Generator]: ...
    def __getitem__(self, index: int | slice) -> torch.Generator | Sequence[torch.Generator]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        if not 0 <= index < len(self):
            raise IndexError(f"the simulator has {len(self)} device(s), asked for generator {index}")
        generator: torch.Generator = _sim.default_generator(index)
        return generator

    def __iter__(self) -> Iterator[torch.Generator]:
        return (self[index] for index in range(len(self)))

    def __len__(self) -> int:
        return device_count()


default_generators = _DefaultGenerators()


def get_rng_state(device: DeviceLike = "sim") -> torch.Tensor:
    """State of the device's generator, a byte tensor on the CPU."""
    return default_generators[device_index(device)].get_state()


def get_rng_state_all() -> list[torch.Tensor]:
    """The states of all devices."""
    return [generator.get_state() for generator in default_generators]


def set_rng_state(new_state: torch.Tensor, device: DeviceLike = "sim") -> None:
    """Puts back what `get_rng_state` gave."""
    default_generators[device_index(device)].set_state(new_state)


def set_rng_state_all(new_states: Iterable[torch.Tensor]) -> None:
    """Puts back what `get_rng_state_all` gave."""
    for index, state in enumerate(new_states):
        set_rng_state(state, index)


def manual_seed(seed: int) -> None:
    """Seeds the current device."""
    default_generators[current_device()].manual_seed(int(seed))


def manual_seed_all(seed: int) -> None:
    """Seeds all devices."""
    for generator in default_generators:
        generator.manual_seed(int(seed))


def seed() -> None:
    """Seeds the current device from the system."""
    default_generators[current_device()].seed()


def seed_all() -> None:
    """Seeds all devices alike from the system."""
    value = default_generators[0].seed()
    manual_seed_all(value)


def initial_seed() -> int:
    """The seed of the current device."""
    return default_generators[current_device()].initial_seed()
