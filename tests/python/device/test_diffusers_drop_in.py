"""Our class in place of the one of that name in Diffusers, under the code that uses it."""

from __future__ import annotations

import importlib
from typing import Any

import pytest
import torch

import noria

torch_utils = pytest.importorskip("diffusers.utils.torch_utils")
if not hasattr(torch_utils, "TorchDeviceBackend"):
    pytest.skip("this Diffusers has no TorchDeviceBackend", allow_module_level=True)


@pytest.fixture
def dropped_in(monkeypatch: pytest.MonkeyPatch) -> Any:
    group_offloading = importlib.import_module("diffusers.hooks.group_offloading")
    components = importlib.import_module("diffusers.modular_pipelines.components_manager")
    for module in (torch_utils, group_offloading, components):
        monkeypatch.setattr(module, "TorchDeviceBackend", noria.TorchDeviceBackend)
    return group_offloading


class Blocks(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = torch.nn.ModuleList(torch.nn.Linear(8, 8) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return x


@pytest.mark.parametrize("offload_type", ["leaf_level", "block_level"])
def test_group_offloading_runs_on_cpu_with_our_class(dropped_in: Any, offload_type: str) -> None:
    model, x = Blocks(), torch.ones(2, 8)
    expected = model(x)
    dropped_in.apply_group_offloading(
        model, torch.device("cpu"), torch.device("cpu"), offload_type=offload_type, num_blocks_per_group=1
    )
    assert torch.equal(model(x), expected)


def test_streams_on_cpu_are_the_value_error_that_it_has_with_its_own_class(dropped_in: Any) -> None:
    with pytest.raises(ValueError, match="Using streams for data transfer requires an onload device"):
        dropped_in.apply_group_offloading(Blocks(), torch.device("cpu"), offload_type="leaf_level", use_stream=True)


def test_group_offloading_streams_on_the_stub_with_our_class(on_stub: Any) -> None:
    script = """
        import importlib
        offloading = importlib.import_module("diffusers.hooks.group_offloading")
        offloading.TorchDeviceBackend = noria.TorchDeviceBackend

        class Layer(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.weight = torch.nn.Parameter(torch.arange(4.0))
            def forward(self, x):
                return self.weight.detach().cpu() + x.cpu()

        class Model(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.blocks = torch.nn.ModuleList(Layer() for _ in range(3))
                self.head = Layer()  # without a part at the root Diffusers reads weights too early (report L1)
            def forward(self, x):
                for block in self.blocks:
                    x = block(x)
                return self.head(x)

        model = Model()
        expected = model(torch.zeros(4))
        offloading.apply_group_offloading(
            model, torch.device("npu:1"), offload_type="block_level", num_blocks_per_group=1, use_stream=True
        )
        noria.TorchDeviceBackend("npu:1").set_device()
        for _ in range(3):
            assert torch.equal(model(torch.zeros(4)), expected)
        print("equal")
    """
    # Diffusers waits for streams on the host; noria's own waits are for events.
    assert on_stub(script, synchronize_stream=True) == "equal"


def test_the_helpers_of_diffusers_work_through_our_class(dropped_in: Any) -> None:
    assert torch_utils.get_device() == noria.get_device()
    torch_utils.empty_device_cache()
    torch_utils.backend_manual_seed("cpu", 3)
    torch_utils.backend_synchronize("cpu")
    assert torch_utils.backend_device_count("cpu") == 1
    torch_utils.backend_reset_peak_memory_stats("cpu")
    assert torch_utils.backend_max_memory_allocated("cpu") > 0


def test_the_components_manager_gets_free_memory_of_the_host(dropped_in: Any) -> None:
    components = importlib.import_module("diffusers.modular_pipelines.components_manager")
    manager = components.ComponentsManager()
    manager.add("linear", torch.nn.Linear(4, 4))
    manager.enable_auto_cpu_offload(device="cpu")
    free, total = components.TorchDeviceBackend("cpu").mem_get_info()
    assert 0 < free <= total
