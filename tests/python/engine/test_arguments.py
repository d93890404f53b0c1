"""Wrong arguments say what was given and what to do; and the model is as it was."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

import noria


def model() -> nn.Sequential:
    return nn.Sequential(*(nn.Linear(16, 16) for _ in range(4))).requires_grad_(False)


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"pin": "yes"}, TypeError, "pin must be"),
        ({"disk": 5}, TypeError, "disk must be"),
        ({"disk": ""}, ValueError, "is empty"),
        ({"disk": "mapped"}, ValueError, "which folder"),
        ({"granularity": "row"}, ValueError, "granularity"),
        ({"trigger": "never"}, ValueError, "trigger"),
        ({"budget": "lots"}, ValueError, "lots"),
        ({"budget": None, "host_budget": []}, TypeError, "host_budget"),
    ],
)
def test_offload_refuses(options: dict, error: type[Exception], text: str) -> None:
    target = model()
    with pytest.raises(error, match=text):
        noria.offload(target, "cpu", **{"budget": "1MiB", **options})
    assert "_noria_offload" not in target.__dict__
    target(torch.zeros(1, 16))


def test_there_is_no_offloading_to_meta() -> None:
    with pytest.raises(ValueError, match="meta device has no memory"):
        noria.offload(model(), "meta", budget="1MiB")


@pytest.mark.parametrize("value", [1.5, "2", True])
def test_group_offloading_refuses_what_is_no_number_of_blocks(value) -> None:
    with pytest.raises(TypeError, match="num_blocks_per_group must be an int"):
        noria.apply_group_offloading(model(), "cpu", num_blocks_per_group=value)


def test_what_is_no_module_is_named() -> None:
    with pytest.raises(TypeError, match="got a int"):
        noria.apply_group_offloading(5, "cpu", offload_type="leaf_level")
    with pytest.raises(TypeError, match="got a int"):
        noria.load(5, "somewhere", "cpu")
    with pytest.raises(TypeError, match="must be a path"):
        noria.load(model(), None, "cpu")
    handle = noria.offload(model(), "cpu", budget="1MiB")
    with pytest.raises(TypeError, match="got a str"), handle.resident("0"):
        pass


def test_the_budget_is_the_one_given() -> None:
    assert noria.offload(model(), "cpu", budget="6GiB").status().budget_bytes == 6 << 30


def test_weights_can_be_printed_and_listed(device: torch.device) -> None:
    torch.manual_seed(0)
    target = model()
    weights = [*target.to(device).parameters()]
    expected = [
        (repr(w), w.tolist(), w[1].tolist(), f"{w.flatten()[0]:.3f}", w.view(torch.int32).tolist()) for w in weights
    ]
    target.to("cpu")
    noria.offload(target, device, budget=2 * 16 * 17 * 4 + 1024, granularity="leaf")
    for _ in range(2):
        for weight, wanted in zip(target.parameters(), expected, strict=True):
            got = (repr(weight), weight.tolist(), weight[1].tolist(), f"{weight.flatten()[0]:.3f}")
            assert (*got, weight.view(torch.int32).tolist()) == wanted
        target(torch.zeros(1, 16, device=device))


def test_ending_it_can_be_tried_again_when_the_disk_failed(device: torch.device, tmp_path: Path) -> None:
    torch.manual_seed(0)
    target = model()
    expected = {name: tensor.clone() for name, tensor in target.state_dict().items()}
    handle = noria.offload(target, device, budget="1MiB", disk=tmp_path)
    (data,) = [path for path in tmp_path.rglob("weights-*") if path.is_file()]
    whole = data.read_bytes()
    data.write_bytes(whole[: len(whole) // 2])
    with pytest.raises((noria.IntegrityError, noria.StorageError)):
        handle.remove()
    with pytest.raises((noria.IntegrityError, noria.StorageError)):
        handle.remove()
    assert expected.keys() == dict(target.named_parameters()).keys()


def test_the_staging_keeps_to_the_host_budget(sim, tmp_path: Path) -> None:
    handle = noria.offload(model(), "sim", budget="4KiB", granularity="leaf", host_budget=0, disk=tmp_path)
    assert handle.status().host_pinned_bytes == 0
    handle.resize("3KiB")
