"""Enabling: what it changes, when it refuses, what it says."""

from __future__ import annotations

import pytest
import torch

import noria
import noria.sim

FIGURES = {
    "flops", "memory_bytes_per_second", "h2d_bytes_per_second", "d2h_bytes_per_second", "pageable_bytes_per_second",
    "copy_latency_seconds", "launch_seconds", "host_sync_seconds", "event_seconds", "alloc_seconds",
    "pin_seconds_per_byte", "disk_bytes_per_second", "capacity_bytes", "source",
}  # fmt: skip
MACHINES = {"rtx4090", "rtx3060-12g", "l20", "a100-40g", "h100", "h200", "arc-b580", "mps-m3max", "npu-910b"}


def test_profiles_are_there_without_enabling(fresh_python) -> None:
    script = """
    import torch, noria.sim
    print(sorted(noria.sim.profiles()), torch._C._get_privateuse1_backend_name(), hasattr(torch, "sim"))
    """
    assert fresh_python(script) == f"{sorted(MACHINES)} privateuseone False"


def test_every_profile_has_every_figure() -> None:
    for name, figures in noria.sim.profiles().items():
        assert set(figures) >= FIGURES, name


def test_profile_memory_and_overrides_make_the_device(simulate) -> None:
    sim = simulate("rtx3060-12g", memory="1GiB", overrides={"launch_seconds": 1e-3})
    assert torch.sim.mem_get_info() == (1 << 30, 1 << 30)
    properties = torch.sim.get_device_properties()
    assert properties.name == "rtx3060-12g"
    assert properties.total_memory == 1 << 30
    before = sim.host_clock()
    torch.zeros(4, device="sim")
    assert sim.host_clock() - before >= 1e-3


def test_an_own_machine_is_a_profile(simulate) -> None:
    figures = dict(noria.sim.profiles()["l20"], capacity_bytes=2 << 30)
    simulate(figures)
    assert torch.sim.mem_get_info()[1] == 2 << 30


def test_several_devices(simulate) -> None:
    simulate(devices=3)
    assert torch.sim.device_count() == 3
    with torch.sim.device(2):
        assert torch.empty(1, device="sim").device == torch.device("sim", 2)
    assert torch.sim.current_device() == 0


def test_reconfiguring_while_a_tensor_lives_is_refused(simulate) -> None:
    simulate()
    alive = torch.zeros(100, device="sim")
    with pytest.raises(noria.Error, match="400 B"):
        simulate()
    assert torch.equal(alive.cpu(), torch.zeros(100))


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"profile": "rtx9999"}, "rtx4090"),
        ({"checker": "loud"}, "'raise', 'record' or 'off'"),
        ({"devices": 0}, "at least 1"),
        ({"copy_engines": 3}, "1 or 2"),
        ({"memory": "50%"}, "share"),
        ({"overrides": {"warp_speed": 9}}, "warp_speed"),
    ],
)
def test_a_wrong_option_says_what_is_right(simulate, options: dict, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        simulate(**options)


def test_another_backend_in_the_process_is_named_with_the_remedy(fresh_python) -> None:
    script = """
    import torch, noria, noria.sim
    torch.utils.rename_privateuse1_backend("other")
    try:
        noria.sim.enable()
    except noria.Error as error:
        print(error)
    """
    message = fresh_python(script)
    assert "'other'" in message
    assert "TORCH_DEVICE_BACKEND_AUTOLOAD=0" in message


def test_after_a_backward_it_refuses_unless_reserved_or_forced(fresh_python) -> None:
    script = """
    import torch, noria, noria.sim
    if {reserve}:
        noria.sim.reserve(2)
    torch.ones(1, requires_grad=True).sum().backward()
    try:
        noria.sim.enable(devices=2, force={force})
        print("enabled", (torch.ones(1, device="sim:1") + 1).item())
    except noria.Error as error:
        print("refused", "start of the process" in str(error))
    """
    assert fresh_python(script.format(reserve=False, force=False)) == "refused True"
    assert fresh_python(script.format(reserve=True, force=False)) == "enabled 2.0"
    assert fresh_python(script.format(reserve=False, force=True)) == "enabled 2.0"


def test_a_refused_call_changes_nothing(fresh_python) -> None:
    script = """
    import torch, noria, noria.sim
    sim = noria.sim.enable("l20")
    torch.ones(2, device="sim")
    def state():
        return torch.sim.device_count(), torch.sim.get_device_name(), sim.clock(), sim.stats()
    before, refused = state(), []
    for options in ({"devices": 2}, {"devices": 0}, {"devices": 17}, {"devices": "2"}, {"checker": "loud"},
                    {"checker": None}, {"memory": "50%"}, {"memory": 1.5}, {"overrides": 3}, {"profile": 7},
                    {"profile": "rtx9999", "dry": True}):
        try:
            noria.sim.enable(**{"profile": "h100", **options})
        except (noria.Error, ValueError, TypeError) as error:
            refused.append(str(error))
        assert state() == before, options
    print(len(refused), "noria.sim.reserve()" in refused[0], torch.ones(1, device="sim").item())
    """
    assert fresh_python(script) == "11 True 1.0"


def test_a_refused_first_call_leaves_no_device(fresh_python) -> None:
    script = """
    import torch, noria, noria.sim
    torch.ones(1, requires_grad=True).sum().backward()
    try:
        noria.sim.enable()
    except noria.Error:
        print(torch.accelerator.is_available(), noria.get_device())
    noria.sim.enable(force=True)
    print(torch.ones(1, device="sim").item())
    """
    assert fresh_python(script).split() == ["False", "cpu", "1.0"]


def test_a_device_without_streams_or_pinned_memory_says_so(simulate) -> None:
    simulate(streams=False, pinned_memory=False)
    with pytest.raises(RuntimeError, match="stream"):
        torch.sim.Stream()
    with pytest.raises(RuntimeError, match="pin"):
        torch.zeros(4).pin_memory()
    assert torch.zeros(4, device="sim").sum().item() == 0.0


@pytest.mark.parametrize("mode", ["no_grad", "inference_mode"])
def test_it_can_be_enabled_where_gradients_are_off(fresh_python, mode):
    printed = fresh_python(
        f"""
        import torch, noria.sim
        with torch.{mode}():
            noria.sim.enable()
            print(torch.ones(2, device="sim").sum().item())
        """
    )
    assert printed == "2.0"
