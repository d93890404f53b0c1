"""The disk tier: offload folders, checkpoints in place, and what goes wrong with both."""

from __future__ import annotations

import errno
import gc
import json
import os
import resource
import signal
from pathlib import Path

import pytest
import safetensors.torch
import torch
from pairs import Pair
from shapes import SHAPES, assert_same_bits
from torch import nn

import noria
from noria.loading import empty_weights


@pytest.fixture(params=SHAPES.values(), ids=str)
def pair(request: pytest.FixtureRequest, device: torch.device) -> Pair:
    return Pair(request.param, device)


def chain(layers: int = 6, width: int = 64, seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(*(nn.Linear(width, width) for _ in range(layers))).eval().requires_grad_(False)


def layer_bytes(width: int = 64) -> int:
    return 4 * width * (width + 1) + 512


def data_files(folder: Path) -> dict[str, tuple[int, int]]:
    """Every data file below the folder, by name, with its inode and time of change."""
    found = {}
    for path in folder.rglob("*"):
        if path.is_file() and path.name != "manifest.json" and path.stat().st_size > 0:
            found[str(path.relative_to(folder))] = (path.stat().st_ino, path.stat().st_mtime_ns)
    return found


# --- The standing test -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("share", [0.0, 0.5])
@pytest.mark.parametrize("granularity", ["leaf", "block"])
def test_a_folder_gives_the_same_bits(pair: Pair, granularity: str, share: float, tmp_path: Path) -> None:
    smallest = pair.smallest_budget(granularity=granularity)
    budget = int(smallest + share * max(pair.weights_bytes - smallest, 0))
    handle = noria.offload(pair.parts, pair.device, budget=budget, granularity=granularity, disk=tmp_path)
    assert handle.status().disk_bytes > 0
    pair.check()
    pair.check_state()
    handle.remove()
    pair.check_state()


@pytest.mark.parametrize("use_stream", [False, True])
@pytest.mark.parametrize("name", ["T1", "T3", "T5", "T9"])
def test_group_offloading_to_disk_gives_the_same_bits(sim, name: str, use_stream: bool, tmp_path: Path) -> None:
    pair = Pair(SHAPES[name], torch.device("sim"))
    for part in pair.parts.values():
        noria.apply_group_offloading(
            part,
            pair.device,
            offload_type="block_level",
            num_blocks_per_group=1,
            use_stream=use_stream,
            offload_to_disk_path=tmp_path,
        )
    pair.check()
    pair.check_state()


# --- Folders ---------------------------------------------------------------------------------------------------------


def test_a_second_run_uses_what_the_first_wrote(device: torch.device, tmp_path: Path) -> None:
    x = torch.randn(2, 64, device=device)
    expected = chain().to(device)(x)
    written = []
    for _ in range(2):
        model = chain()
        noria.offload(model, device, budget=2 * layer_bytes(), disk=tmp_path)
        assert_same_bits(model(x), expected)
        written.append(data_files(tmp_path))
    assert len(written[0]) == 1
    assert written[1] == written[0]


def test_other_weights_of_the_same_shapes_are_not_mixed_up(device: torch.device, tmp_path: Path) -> None:
    x = torch.randn(2, 64, device=device)
    models = [chain(seed=seed) for seed in range(2)]
    expected = [chain(seed=seed).to(device)(x) for seed in range(2)]
    for model in models:
        noria.offload(model, device, budget=2 * layer_bytes(), disk=tmp_path)
    for _ in range(2):
        for model, wanted in zip(models, expected, strict=True):
            assert_same_bits(model(x), wanted)


def test_another_granularity_reads_the_same_file(device: torch.device, tmp_path: Path) -> None:
    x = torch.randn(2, 64, device=device)
    expected = chain().to(device)(x)
    model = chain()
    noria.offload(model, device, budget=4 * layer_bytes(), granularity="block", disk=tmp_path).remove()
    written = data_files(tmp_path)
    noria.offload(model, device, budget=4 * layer_bytes(), granularity="leaf", disk=tmp_path)
    assert data_files(tmp_path) == written
    assert_same_bits(model(x), expected)


def test_a_written_weight_is_kept_and_the_folder_is_not_touched(device: torch.device, tmp_path: Path) -> None:
    x = torch.randn(2, 64, device=device)
    resident = chain().to(device)
    model = chain()
    handle = noria.offload(model, device, budget=2 * layer_bytes(), disk=tmp_path)
    written = data_files(tmp_path)
    for _ in range(2):
        for one in (resident, model):
            one[3].weight.mul_(1.5)
        assert_same_bits(model(x), resident(x))
    handle.flush()
    assert {group["tier"] for group in handle.status().groups} == {"disk"}
    assert data_files(tmp_path) == written
    assert_same_bits(model[3].weight.cpu(), resident[3].weight.cpu())
    for name, tensor in resident.state_dict().items():
        assert_same_bits(model.state_dict()[name], tensor, name)
    handle.remove()
    assert_same_bits(model[3].weight, resident[3].weight.cpu())
    again = chain()
    noria.offload(again, device, budget=2 * layer_bytes(), disk=tmp_path)
    assert data_files(tmp_path) == written
    assert_same_bits(again(x), chain().to(device)(x))


def test_training_from_disk_takes_no_host_memory(device: torch.device, tmp_path: Path) -> None:
    """Weights, all of them trained, stay on disk; only what the device lacks in room is copied through memory."""
    resident, model = chain().to(device), chain()
    handle = noria.offload(model, device, budget=3 * layer_bytes(), granularity="leaf", disk=tmp_path)
    written = data_files(tmp_path)
    optimizers = [torch.optim.SGD(one.parameters(), lr=0.1, momentum=0.9, foreach=False) for one in (resident, model)]
    taken = handle.status().host_pageable_bytes + handle.status().host_pinned_bytes
    with torch.enable_grad():
        for number in range(6):
            for one, optimizer in zip((resident, model), optimizers, strict=True):
                one.requires_grad_(True)
                optimizer.zero_grad()
                one(torch.full((2, 64), 0.1 * number, device=device)).square().mean().backward()
                optimizer.step()
    for name, tensor in resident.state_dict().items():
        assert_same_bits(model.state_dict()[name], tensor, name)
    status = handle.status()
    assert status.bytes_out > 5 * status.weights_bytes
    assert status.host_pageable_bytes + status.host_pinned_bytes == taken
    assert {group["tier"] for group in status.groups} == {"disk"}
    assert data_files(tmp_path) == written


def test_a_weight_that_cannot_be_written_back_is_kept_and_said(device: torch.device, tmp_path: Path) -> None:
    model = chain()
    x = torch.randn(2, 64, device=device)
    handle = noria.offload(model, device, budget=2 * layer_bytes(), granularity="leaf", disk=tmp_path)
    previous = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, limits[1]))
    try:
        model[3].weight.mul_(2)
        with pytest.raises((noria.StorageError, RuntimeError), match="changed weights") as raised:
            for _ in range(3):
                model(x)
        assert os.strerror(errno.EFBIG) in str(raised.value)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, previous)
    resident = chain().to(device)
    resident[3].weight.mul_(2)
    for _ in range(2):
        assert_same_bits(model(x), resident(x))
    handle.remove()
    assert_same_bits(model[3].weight, resident[3].weight.cpu())


def test_a_full_disk_leaves_the_model_and_no_half_file(device: torch.device, tmp_path: Path) -> None:
    model = chain(width=512)
    expected = [tensor.clone() for tensor in model.state_dict().values()]
    previous = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, limits[1]))
    try:
        with pytest.raises(noria.StorageError):
            noria.offload(model, device, budget=2 * layer_bytes(512), disk=tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, previous)
    assert data_files(tmp_path) == {}
    for actual, wanted in zip(model.state_dict().values(), expected, strict=True):
        assert_same_bits(actual, wanted)
    noria.offload(model, device, budget=2 * layer_bytes(512), disk=tmp_path)
    assert len(data_files(tmp_path)) == 1


def test_a_damaged_file_never_becomes_weights(device: torch.device, tmp_path: Path) -> None:
    model = chain()
    noria.offload(model, device, budget=2 * layer_bytes(), disk=tmp_path)
    x = torch.randn(2, 64, device=device)
    model(x)
    name = next(iter(data_files(tmp_path)))
    size = (tmp_path / name).stat().st_size
    with open(tmp_path / name, "r+b") as file:
        file.truncate(size // 2)
    with pytest.raises((noria.IntegrityError, noria.StorageError)):
        for _ in range(2):
            model(x)


def test_on_the_cpu_a_pass_reads_the_fewest_bytes_whatever_the_clock_says(tmp_path: Path) -> None:
    model = chain(layers=12)
    budget = 8 * layer_bytes()
    handle = noria.offload(model, "cpu", budget=budget, granularity="leaf", disk=tmp_path)
    x = torch.randn(2, 64)
    read = []
    for _ in range(10):
        before = handle.status().bytes_in
        model(x)
        read.append(handle.status().bytes_in - before)
    assert max(read[2:]) <= 12 * layer_bytes() - budget + 2 * layer_bytes()


# --- Host memory between the disk and the device ---------------------------------------------------------------------


def test_what_fits_the_host_budget_stays_in_host_memory(sim, tmp_path: Path) -> None:
    model = chain()
    handle = noria.offload(
        model,
        "sim",
        budget=2 * layer_bytes(),
        granularity="leaf",
        host_budget=3 * -(-layer_bytes() // 4096) * 4096,
        disk=tmp_path,
    )
    tiers = [group["tier"] for group in handle.status().groups]
    assert tiers.count("pinned") == 3
    assert tiers.count("disk") == 3
    x = torch.randn(2, 64, device="sim")
    for _ in range(3):
        assert_same_bits(model(x), chain().to("sim")(x))


# --- Checkpoints in place --------------------------------------------------------------------------------------------


def tiny_bert(folder: Path):
    from transformers import BertConfig, BertModel

    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=300, hidden_size=64, num_hidden_layers=4, num_attention_heads=4, intermediate_size=128
    )
    BertModel(config).eval().save_pretrained(folder, max_shard_size="200KB")
    assert len(list(folder.glob("*.safetensors"))) > 2, "several shards"
    return BertModel.from_pretrained(folder).eval().requires_grad_(False)


@torch.no_grad()
def test_a_models_own_checkpoint_is_streamed_in_place(device: torch.device, tmp_path: Path) -> None:
    model = tiny_bert(tmp_path)
    tokens = torch.arange(24, device=device).reshape(2, 12)
    resident = tiny_bert(tmp_path)
    for parameter in resident.parameters():
        parameter.data = parameter.data.clone()
    expected = resident.to(device)(tokens).last_hidden_state
    before = data_files(tmp_path)
    handle = noria.offload(model, device, budget=160 << 10, disk="checkpoint")
    status = handle.status()
    assert status.disk_bytes == sum(parameter.nbytes for parameter in model.parameters())
    for _ in range(3):
        assert_same_bits(model(tokens).last_hidden_state, expected)
    assert data_files(tmp_path) == before


@torch.no_grad()
def test_a_weight_that_differs_from_the_checkpoint_stays_in_memory(device: torch.device, tmp_path: Path) -> None:
    model = tiny_bert(tmp_path)
    model.encoder.layer[1].output.dense.weight.data = model.encoder.layer[1].output.dense.weight * 2
    tokens = torch.arange(24, device=device).reshape(2, 12)
    resident = tiny_bert(tmp_path)
    for parameter in resident.parameters():
        parameter.data = parameter.data.clone()
    resident.encoder.layer[1].output.dense.weight.mul_(2)
    expected = resident.to(device)(tokens).last_hidden_state
    noria.offload(model, device, budget=160 << 10, disk="checkpoint")
    for _ in range(2):
        assert_same_bits(model(tokens).last_hidden_state, expected)


def test_a_model_without_a_checkpoint_says_so(device: torch.device) -> None:
    with pytest.raises(ValueError, match="does not say which folder"):
        noria.offload(chain(), device, budget="1MiB", disk="checkpoint")


@torch.no_grad()
def test_a_checkpoint_that_is_replaced_is_noticed(device: torch.device, tmp_path: Path) -> None:
    model = tiny_bert(tmp_path)
    tokens = torch.arange(24, device=device).reshape(2, 12)
    handle = noria.offload(model, device, budget=160 << 10, disk="checkpoint")
    model(tokens)
    for shard in tmp_path.glob("*.safetensors"):
        os.utime(shard, ns=(1, 1))
        with open(shard, "r+b") as file:
            file.seek(-4, os.SEEK_END)
            file.write(b"\0\0\0\0")
    with pytest.raises(noria.IntegrityError):
        for _ in range(2):
            model(tokens)
    assert handle.status().disk_bytes > 0


@torch.no_grad()
def test_load_fills_host_memory_from_the_checkpoint(sim, tmp_path: Path) -> None:
    from transformers import BertConfig, BertModel

    resident = tiny_bert(tmp_path).to("sim")
    tokens = torch.arange(24, device="sim").reshape(2, 12)
    expected = resident(tokens).last_hidden_state
    for host_budget, tier in ((None, "disk"), ("1GiB", "pinned")):
        with empty_weights():
            model = BertModel(BertConfig.from_pretrained(tmp_path)).eval().requires_grad_(False)
        handle = noria.load(model, tmp_path, "sim", budget=160 << 10, host_budget=host_budget)
        tiers = [group["tier"] for group in handle.status().groups if group["name"] != "embeddings"]
        assert set(tiers) == {tier}
        for _ in range(3):
            assert_same_bits(model(tokens).last_hidden_state, expected)


@torch.no_grad()
def test_a_model_and_its_engine_go_when_nobody_holds_them(sim, tmp_path: Path) -> None:
    model = tiny_bert(tmp_path)
    noria.offload(model, "sim", budget=160 << 10, disk="checkpoint")
    model(torch.arange(24, device="sim").reshape(2, 12))
    assert sim.stats()["allocated"] > 0
    del model
    gc.collect()
    assert sim.stats()["allocated"] == 0


def test_the_manifest_says_whose_bytes_the_folder_holds(device: torch.device, tmp_path: Path) -> None:
    noria.offload(chain(), device, budget=2 * layer_bytes(), disk=tmp_path)
    (manifest,) = tmp_path.rglob("manifest.json")
    content = json.loads(manifest.read_text())["noria"]
    assert content["source"]["content"].startswith("xxh3-128:")
    assert {tensor["name"] for tensor in content["tensors"]} == set(chain().state_dict())


def test_load_over_real_weights_takes_those_of_the_checkpoint(sim, tmp_path: Path) -> None:
    source = chain()
    from safetensors.torch import save_file

    save_file(source.state_dict(), tmp_path / "model.safetensors")
    other = chain(seed=1)
    noria.load(other, tmp_path, "sim", budget=3 * layer_bytes(), host_budget="1GiB")
    x = torch.randn(2, 64)
    assert torch.equal(other(x.to("sim")).cpu(), source.to("sim")(x.to("sim")).cpu())


@torch.no_grad()
def test_an_old_checkpoint_of_transformers_is_read_under_its_old_names(device: torch.device, tmp_path: Path) -> None:
    """LayerNorm.gamma, and a head's prefix before the names of the base model: as `from_pretrained` takes them."""
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(
        hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=16, vocab_size=20
    )
    torch.manual_seed(0)
    model = transformers.BertModel(config).eval()
    model.save_pretrained(tmp_path)
    file = tmp_path / "model.safetensors"
    old = {
        "bert." + name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): value
        for name, value in safetensors.torch.load_file(file).items()
    }
    assert any("gamma" in name for name in old)
    safetensors.torch.save_file(old, file, metadata={"format": "pt"})
    tokens = torch.arange(5, device=device)[None]
    expected = model.to(device)(tokens).last_hidden_state

    with empty_weights():
        empty = transformers.BertModel(config).eval()
    noria.load(empty, tmp_path, device, budget="1MiB")
    assert_same_bits(empty(tokens).last_hidden_state, expected)

    loaded = transformers.BertModel.from_pretrained(tmp_path).eval()
    handle = noria.offload(loaded, device, budget="1MiB", granularity="leaf", disk="checkpoint")
    assert_same_bits(loaded(tokens).last_hidden_state, expected)
    norms = [group for group in handle.status().groups if group["name"].endswith("LayerNorm")]
    assert norms != [] and {group["tier"] for group in norms} == {"disk"}


def test_a_checkpoint_of_another_model_is_refused(device: torch.device, tmp_path: Path) -> None:
    safetensors.torch.save_file({"layers.0.kernel": torch.ones(3)}, tmp_path / "other.safetensors")
    model = chain()
    expected = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    with pytest.raises(noria.IntegrityError, match=r"none of the model's tensors: it has layers\.0\.kernel"):
        noria.load(model, tmp_path / "other.safetensors", device, budget="1MiB")
    for name, tensor in model.state_dict().items():
        assert_same_bits(tensor, expected[name], name)


def test_a_device_that_is_not_known_is_a_value_error(fresh_python) -> None:
    script = """
    import noria
    from torch import nn
    for device in ("gpu", "sim", "sim:0"):
        try:
            noria.offload(nn.Linear(2, 2), device, budget="1MiB")
        except ValueError as error:
            print(device in str(error), "noria.sim.enable()" in str(error))
    """
    assert fresh_python(script).splitlines() == ["True False", "True True", "True True"]
