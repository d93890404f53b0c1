# Written by `make stubs` from the extension; do not edit.
"""
noria's engine; the public names are in the package noria
"""

from __future__ import annotations

import collections.abc
import typing

import torch

__all__: list[str] = [
    "NO_MODULE",
    "NO_PAGE",
    "DeviceBackend",
    "Engine",
    "Event",
    "FolderStore",
    "Grouping",
    "HostTensors",
    "ModuleHook",
    "ModuleNode",
    "ShardSet",
    "TensorTable",
    "can_become",
    "component_folder",
    "detach_to_home",
    "device_backend",
    "dtype_name",
    "evicted_prefix",
    "format_bytes",
    "group_of",
    "holds_bytes_of",
    "is_managed",
    "is_mapped",
    "is_share",
    "make_groups",
    "map_tensor",
    "mark_dirty",
    "missing_types",
    "net_engines",
    "omit_orderings",
    "out_of_memory_patterns",
    "parse_byte_amount",
    "ring_bytes",
    "says_out_of_memory",
    "set_log_sink",
    "torch_minor",
    "usable_device_types",
    "write_trace",
]

class DeviceBackend:
    """
    All calls to one device, on PyTorch's C++ side.
    """
    def capabilities(self) -> dict: ...
    def current_device(self) -> int: ...
    def current_stream(self) -> int: ...
    def default_stream(self) -> int: ...
    def device_count(self) -> int: ...
    def empty_cache(self) -> None: ...
    def is_pinned(self, tensor: torch.Tensor) -> bool: ...
    def manual_seed(self, seed: typing.SupportsInt | typing.SupportsIndex) -> None: ...
    def max_memory_allocated(self) -> int: ...
    def mem_get_info(self) -> tuple[int, int]: ...
    def memory_allocated(self) -> int: ...
    def new_event(self, timing: bool = False) -> Event: ...
    def new_stream(self, priority: typing.SupportsInt | typing.SupportsIndex = 0) -> int: ...
    def pin(self, tensor: torch.Tensor) -> torch.Tensor: ...
    def reset_peak_memory_stats(self) -> None: ...
    def restore_current_device(self, index: typing.SupportsInt | typing.SupportsIndex) -> None: ...
    def rng_state(self) -> torch.Tensor: ...
    def set_current_device(self) -> int: ...
    def set_current_stream(self, stream_id: typing.SupportsInt | typing.SupportsIndex) -> int: ...
    def set_rng_state(self, state: torch.Tensor) -> None: ...
    def synchronize(self) -> None: ...
    def synchronize_stream(self, stream_id: typing.SupportsInt | typing.SupportsIndex) -> None: ...
    def why_not(self, capability: str) -> str: ...
    @property
    def device_type(self) -> int: ...
    @property
    def index(self) -> int: ...

class Event:
    """
    A point in the work of a stream of a device whose events are noria's own.
    """
    def block(self, backend: DeviceBackend, stream_id: typing.SupportsInt | typing.SupportsIndex) -> None: ...
    def elapsed_seconds(self, later: Event) -> float: ...
    def query(self) -> bool: ...
    def record(self, backend: DeviceBackend, stream_id: typing.SupportsInt | typing.SupportsIndex) -> None: ...
    def synchronize(self) -> None: ...

class Engine:
    @staticmethod
    def create(
        device: torch.device,
        budget: typing.SupportsInt | typing.SupportsIndex,
        table: TensorTable,
        grouping: Grouping,
        depth: typing.SupportsInt | typing.SupportsIndex = 2,
        pin: bool | None = None,
        pinned_limit: typing.SupportsInt | typing.SupportsIndex = 18446744073709551615,
        use_streams: bool = True,
        low_memory: bool = False,
        verify: bool = False,
    ) -> Engine: ...
    def begin(self, module: typing.SupportsInt | typing.SupportsIndex) -> None: ...
    def bring_home(self, group: typing.SupportsInt | typing.SupportsIndex) -> None: ...
    def detach_to_device(self, page: typing.SupportsInt | typing.SupportsIndex) -> None: ...
    def end(self, module: typing.SupportsInt | typing.SupportsIndex) -> None: ...
    def evict_all(self) -> None: ...
    def flush(self) -> None: ...
    def give_file_home(
        self,
        group: typing.SupportsInt | typing.SupportsIndex,
        shards: ShardSet,
        extents: collections.abc.Sequence[
            tuple[
                typing.SupportsInt | typing.SupportsIndex,
                typing.SupportsInt | typing.SupportsIndex,
                typing.SupportsInt | typing.SupportsIndex,
                str,
                torch.dtype,
            ]
        ],
    ) -> None: ...
    def give_memory_home(self, group: typing.SupportsInt | typing.SupportsIndex) -> None: ...
    def group_bytes(self, group: typing.SupportsInt | typing.SupportsIndex) -> int: ...
    def hold(self, groups: collections.abc.Sequence[typing.SupportsInt | typing.SupportsIndex]) -> None: ...
    def let_go(self, groups: collections.abc.Sequence[typing.SupportsInt | typing.SupportsIndex]) -> None: ...
    def page_alive(self, page: typing.SupportsInt | typing.SupportsIndex) -> bool: ...
    def resize(self, budget: typing.SupportsInt | typing.SupportsIndex) -> None: ...
    def start(self) -> None: ...
    def start_trace(self) -> None: ...
    def status(self) -> dict: ...
    def stop(self) -> None: ...
    def stop_trace(self) -> list: ...
    @property
    def device(self) -> torch.device: ...
    @property
    def page_count(self) -> int: ...

class ModuleNode:
    def __init__(
        self,
        name: str,
        parent: typing.SupportsInt | typing.SupportsIndex,
        list: bool,
        called: bool,
        pages: collections.abc.Sequence[typing.SupportsInt | typing.SupportsIndex],
    ) -> None: ...

class Grouping:
    @property
    def around(self) -> list[list[int]]: ...
    @property
    def group_names(self) -> list[str]: ...
    @property
    def group_pages(self) -> list[list[int]]: ...
    @property
    def needs(self) -> list[list[int]]: ...

class TensorTable:
    def __init__(self) -> None: ...
    def add(self, tensor: torch.Tensor, name: str) -> int: ...
    def find_pages(self) -> None: ...
    def leave_home(self, page: typing.SupportsInt | typing.SupportsIndex) -> None:
        """
        Its home has the bytes of the page already.
        """
    def manage(self, engine: Engine, index: typing.SupportsInt | typing.SupportsIndex) -> torch.Tensor: ...
    def page_of(self, index: typing.SupportsInt | typing.SupportsIndex) -> int: ...
    @property
    def page_bytes(self) -> list[int]: ...

class ShardSet:
    @staticmethod
    def open(path: str, variant: str = "") -> ShardSet: ...
    def read_through(self) -> None:
        """
        Reads every tensor's bytes and drops them: what the disk alone can do.
        """
    @property
    def bytes(self) -> int: ...
    @property
    def tensors(self) -> dict: ...

class FolderStore:
    @staticmethod
    def open_or_write(folder: str, engine: Engine, table: TensorTable) -> FolderStore: ...
    def give_home(self, engine: Engine, group: typing.SupportsInt | typing.SupportsIndex) -> None: ...

class HostTensors:
    def __init__(self) -> None: ...
    def of(self, tensor: torch.Tensor) -> torch.Tensor:
        """
        The managed tensor's bytes as a cpu tensor over its host home, current as of now.
        """

class ModuleHook:
    def __init__(
        self,
        engine: Engine,
        module: typing.SupportsInt | typing.SupportsIndex,
        changed: typing.Any,
        unmoved_kwargs: set,
    ) -> None: ...
    def after(self, arg0: typing.Any, arg1: typing.Any, arg2: typing.Any) -> typing.Any: ...
    def before(self, arg0: typing.Any, arg1: tuple, arg2: dict) -> typing.Any: ...
    def watch(self, registry: dict, key: typing.Any) -> None: ...

def can_become(stored: str, wanted: torch.dtype) -> bool:
    """
    Whether tensors of a safetensors dtype can be had as `wanted`, by a conversion if need be.
    """

def component_folder(component: str) -> str: ...
def detach_to_home(tensor: torch.Tensor) -> None:
    """
    The tensor, on the cpu, goes on with the bytes of its host home.
    """

def device_backend(device: torch.device) -> DeviceBackend:
    """
    The backend of a device. ValueError where PyTorch's C++ side has none.
    """

def dtype_name(dtype: torch.dtype) -> str:
    """
    What safetensors files call it; empty when they have none.
    """

def format_bytes(bytes: typing.SupportsInt | typing.SupportsIndex) -> str: ...
def group_of(tensor: torch.Tensor) -> int: ...
def holds_bytes_of(
    shards: ShardSet,
    file: typing.SupportsInt | typing.SupportsIndex,
    offset: typing.SupportsInt | typing.SupportsIndex,
    tensor: torch.Tensor,
    stored: str,
) -> bool:
    """
    Whether the file holds the bytes of a contiguous cpu tensor, converted from dtype `stored`.
    """

def is_managed(tensor: torch.Tensor) -> bool: ...
def is_mapped(tensor: torch.Tensor) -> bool: ...
def is_share(text: str) -> bool: ...
def make_groups(
    modules: collections.abc.Sequence[ModuleNode],
    table: TensorTable,
    granularity: str,
    blocks_per_group: typing.SupportsInt | typing.SupportsIndex,
    block_modules: collections.abc.Sequence[str],
    budget: typing.SupportsInt | typing.SupportsIndex | None,
) -> Grouping: ...
def map_tensor(
    shards: ShardSet,
    file: typing.SupportsInt | typing.SupportsIndex,
    offset: typing.SupportsInt | typing.SupportsIndex,
    like: torch.Tensor,
) -> torch.Tensor:
    """
    A contiguous cpu tensor like `like` over a private mapping of the file.
    """

def mark_dirty(tensor: torch.Tensor) -> None: ...
def missing_types(device_type: str) -> list[str]:
    """
    The dtypes that this kind of device is known not to compute with, where it does not describe itself.
    """

def net_engines() -> int: ...
def omit_orderings(orderings: typing.SupportsInt | typing.SupportsIndex) -> None:
    """
    For tests of the order checker: a sum of noria::Ordering that the engine leaves out. Not in release builds.
    """

def out_of_memory_patterns() -> list[tuple[str, str, str]]: ...
def parse_byte_amount(text: str, free_bytes: typing.SupportsInt | typing.SupportsIndex) -> int:
    """
    Bytes that `text` means; a percentage is taken of `free_bytes`.
    """

def ring_bytes(table: TensorTable, grouping: Grouping, depth: typing.SupportsInt | typing.SupportsIndex) -> int: ...
def says_out_of_memory(device_type: str, message: str) -> bool: ...
def set_log_sink(sink: collections.abc.Callable) -> None: ...
def usable_device_types() -> list[str]: ...
def write_trace(
    path: str,
    slices: collections.abc.Sequence[
        tuple[str, str, typing.SupportsFloat | typing.SupportsIndex, typing.SupportsFloat | typing.SupportsIndex]
    ],
) -> None:
    """
    Writes the slices of stop_trace() as Chrome-trace JSON, which Perfetto opens.
    """

NO_MODULE: int = 4294967295
NO_PAGE: int = 4294967295
__version__: str = "0.1.0"
evicted_prefix: str = "EvictedWeightError: "
torch_minor: str = "2.13"
