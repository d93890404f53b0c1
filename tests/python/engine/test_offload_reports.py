"""What users of offloaders reported, one test each. Every test takes the offloader; docs/reports.md has the table.

`python bench/peer_reports.py` runs the same tests on Diffusers' own group offloading.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from offloaders import Offloader
from pairs import Pair
from reports import BLOCKS, EITHER, LEAVES, model_of, offloaded, report
from shapes import (
    SHAPES,
    WIDTH,
    Autoencoder,
    Block,
    Inputs,
    LowRank,
    OnlyAList,
    Pipeline,
    RaisesOnce,
    Tied,
    assert_same_bits,
)
from torch import nn


class Wide(nn.Module):
    """Blocks of a quarter of a MiB."""

    def __init__(self, blocks: int = 6) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(256, 256) for _ in range(blocks))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = torch.tanh(block(x))
        return x


WIDE = model_of("wide", Wide, 3, 256)
WIDE_BLOCK = 256 * 257 * 4


def held_after(pair: Pair, run: Callable[[], Any]) -> int:
    """Device bytes of the offloaded model's weights that are left after `run`."""
    pair.resident = None
    gc.collect()
    run()
    gc.collect()
    return torch.sim.memory_allocated()


# --- Races, stream order, wrong numbers -------------------------------------------------------------------------------


@report("1", "diffusers#11041", "right from the first call on, with a layer that never runs")
def test_a_layer_that_is_not_run(offloader: Offloader, sim) -> None:
    pair = offloaded(offloader, "T1", use_stream=True, **LEAVES)
    pair.check(passes=3, names=["without the optional layer"])


@report("2", "diffusers#11086", "an autoencoder entered by encode and decode, with streams")
@EITHER
def test_entry_points_other_than_forward(offloader: Offloader, sim, level: dict) -> None:
    pair = offloaded(offloader, "T3", use_stream=True, **level)
    pair.check(names=["decode"])
    pair.check(names=["encode", "decode"])


@report("4", "diffusers#11094", "bare tensors of the root leave the device again")
@EITHER
def test_root_tensors_leave_the_device(offloader: Offloader, sim, level: dict) -> None:
    shape = model_of("root", lambda: RootTable(4096), 2, 4096)
    pair = offloaded(offloader, shape, use_stream=True, **level)
    with torch.no_grad():
        held = held_after(pair, lambda: pair.offloaded(torch.ones(2, 4096, device="sim")))
    assert held <= 2 * 4096 * 4 + 2 * 4096 * 4 + 1024


class RootTable(nn.Module):
    """A bare parameter and a bare buffer beside a layer without weights to speak of."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(width))
        self.register_buffer("offsets", torch.randn(width))
        self.norm = nn.LayerNorm(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(x * self.table + self.offsets)


@report("5", "diffusers#11307", "the order of calls is not that of declaration")
@EITHER
def test_interleaved_lists(offloader: Offloader, sim, level: dict) -> None:
    offloaded(offloader, "T2", use_stream=True, **level).check()


@report("7", "diffusers#11981", "an affine norm at the root after the last block: ten calls")
@EITHER
def test_a_norm_at_the_root(offloader: Offloader, sim, level: dict) -> None:
    offloaded(offloader, "T1", use_stream=True, **level).check(passes=10, names=["all blocks"])


@report("8", "diffusers#12673", "record_stream changes no values, also when memory is scarce")
def test_record_stream_when_memory_is_scarce(offloader: Offloader, simulate) -> None:
    simulate(memory=12 * WIDE_BLOCK)
    offloaded(offloader, WIDE, use_stream=True, record_stream=True, **BLOCKS).check(passes=6)


@report("10", "diffusers#12612", "casting after offloading is done or refused")
def test_casting_after_offloading(offloader: Offloader, sim) -> None:
    pair = offloaded(offloader, "T1", use_stream=True, record_stream=True, low_cpu_mem_usage=True, **LEAVES)
    try:
        for model in (pair.resident, pair.offloaded):
            for block in model.blocks:
                block.up.to(torch.float16).float()  # what layerwise casting to a storage type does to the values
    except (RuntimeError, ValueError):
        pair.resident = pair.shape.build(0).to(pair.device)
    pair.check(names=["all blocks"])


@report("11", "diffusers#12613", "buffers that a norm reads are consistent, with record_stream")
def test_buffers_in_norms(offloader: Offloader, sim) -> None:
    pair = offloaded(offloader, "T9", use_stream=True, record_stream=True, **LEAVES)
    pair.check()
    pair.check_state()


@report("13", "diffusers#13502", "the compute stream waits for its own weights, however slow the copy")
@EITHER
def test_slow_copies(offloader: Offloader, sim, level: dict) -> None:
    pair = offloaded(offloader, WIDE, use_stream=True, **level)
    sim.inject("slow_copy", count=40, factor=1000.0)
    pair.check(passes=6)


@report("14", "ROCm/pytorch#3194", "nothing relies on the order of unrelated streams")
@EITHER
def test_called_on_a_stream_of_the_callers(offloader: Offloader, sim, level: dict) -> None:
    pair = offloaded(offloader, WIDE, use_stream=True, **level)
    for stream in (torch.sim.Stream(), torch.sim.Stream(), torch.sim.current_stream()):
        stream.wait_stream(torch.sim.current_stream())
        with torch.sim.stream(stream):
            pair.check(passes=2)
        torch.sim.current_stream().wait_stream(stream)


@report("16", "vllm-omni#5782", "a device without usable streams takes the synchronous path")
@EITHER
def test_a_device_without_streams(offloader: Offloader, simulate, level: dict) -> None:
    simulate(streams=False)
    with pytest.raises(ValueError, match="stream"):
        offloaded(offloader, "T1", use_stream=True, **level)
    pair = offloaded(offloader, "T1", **level)
    pair.check()


@report("17", "ComfyUI#10501", "memory is reused only after its reader")
def test_memory_is_reused_after_its_reader(offloader: Offloader, simulate) -> None:
    simulate(memory=12 * WIDE_BLOCK)
    offloaded(offloader, WIDE, use_stream=True, **BLOCKS).check(passes=6)


@report("19", "ComfyUI#14812", "with and without streams the same bits")
@EITHER
def test_streams_change_no_bits(offloader: Offloader, sim, level: dict) -> None:
    with_stream = offloaded(offloader, "T1", use_stream=True, **level)
    without = offloaded(offloader, "T1", **level)
    without.check()
    with_stream.resident = without.offloaded
    with_stream.check()


@report("20", "ComfyUI#15284", "small and odd sizes are right too")
@EITHER
@pytest.mark.parametrize("use_stream", [False, True])
def test_odd_sizes(offloader: Offloader, sim, level: dict, use_stream: bool) -> None:
    shape = model_of("odd", lambda: nn.Sequential(nn.Linear(1, 3), nn.Linear(3, 7), nn.Linear(7, 1)), 1, 1)
    offloaded(offloader, shape, use_stream=use_stream, **level).check()


class Checkpointed(OnlyAList):
    """Blocks whose activations are computed again in the backward."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = torch.utils.checkpoint.checkpoint(block, x, use_reentrant=False)
        return x


@report("22", "ComfyUI#15846", "a recomputed activation is that of the forward")
@EITHER
def test_checkpointing(offloader: Offloader, sim, level: dict) -> None:
    pair = offloaded(offloader, model_of("checkpointed", Checkpointed), **level)
    for seed in range(2):
        gradients = []
        for model in (pair.resident, pair.offloaded):
            x = Inputs(pair.device, seed).tensor(3, WIDTH).requires_grad_()
            model(x).square().sum().backward()
            gradients.append(x.grad)
        assert_same_bits(gradients[1], gradients[0])


class EightBitFloat(nn.Module):
    """A weight stored in float8, cast where it is used."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(WIDTH, WIDTH).to(torch.float8_e4m3fn), requires_grad=False)
        self.scale = nn.Parameter(torch.tensor(0.3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ (self.weight.to(x.dtype) * self.scale).t()


@report("23", "LightX2V#708", "float8 weights give the resident's output")
@EITHER
def test_float8_weights(offloader: Offloader, sim, level: dict) -> None:
    shape = model_of("float8", lambda: nn.Sequential(*(EightBitFloat() for _ in range(4))), 3, WIDTH)
    offloaded(offloader, shape, use_stream=True, **level).check()


# --- Entry points and direct reads ------------------------------------------------------------------------------------


@report("25", "diffusers#12096", "tiled decoding is right from the first pass on")
@EITHER
def test_tiled_decoding(offloader: Offloader, sim, level: dict) -> None:
    pair = offloaded(offloader, "T3", use_stream=True, **level)
    pair.check(names=["decode in tiles", "decode"])


@report("26", "diffusers#10797", "one component offloaded, the others resident")
def test_one_component_of_three(offloader: Offloader, sim) -> None:
    pair = Pair(SHAPES["T12"], torch.device("sim"))
    for name, part in pair.parts.items():
        if name == "expert":
            offloader(part, **LEAVES)
        else:
            part.to("sim")
    pair.check()


@report("28", "accelerate#3542", "nn.MultiheadAttention reads its projection's weight directly")
@EITHER
def test_multihead_attention(offloader: Offloader, sim, level: dict) -> None:
    offloaded(offloader, "T6", **level).check(names=["attention"])


def siglip() -> nn.Module:
    transformers = pytest.importorskip("transformers")
    config = transformers.SiglipVisionConfig(
        hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2, image_size=8, patch_size=4
    )
    return transformers.SiglipVisionModel(config).eval()


@report("29", "diffusers#14551", "the attention pooling head of SigLIP")
@EITHER
def test_siglip_pooling_head(offloader: Offloader, sim, level: dict) -> None:
    call = lambda model, inputs: model(inputs.tensor(1, 3, 8, 8)).pooler_output  # noqa: E731
    offloaded(offloader, model_of("siglip", siglip, forward=call), **level).check()


class Vocoder(nn.Module):
    """A weight-normed convolution two levels down."""

    def __init__(self) -> None:
        super().__init__()
        conv = nn.utils.parametrizations.weight_norm(nn.Conv1d(4, 4, 3, padding=1))
        self.inner = nn.Sequential(nn.Conv1d(4, 4, 1), nn.Sequential(conv, nn.Tanh()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x)


@report("31", "diffusers, skipped tests of four models", "weight-normed layers inside a nested encoder")
@EITHER
def test_weight_norm(offloader: Offloader, sim, level: dict) -> None:
    offloaded(offloader, model_of("vocoder", Vocoder, 1, 4, 9), **level).check()


@report("32", "transformers#46978", "a functional call with a child's weight")
@EITHER
def test_a_functional_call_with_a_childs_weight(offloader: Offloader, sim, level: dict) -> None:
    offloaded(offloader, "T6", **level).check(names=["a child's weight"])


@report("34", "ComfyUI#15251", "bare parameters and buffers of the root")
@EITHER
def test_bare_root_tensors(offloader: Offloader, sim, level: dict) -> None:
    offloaded(offloader, "T9", **level).check(names=["forward"])


class Everywhere(nn.Module):
    """Two lists, and tensors of the root between them."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.ModuleList(Block() for _ in range(2))
        self.tokens = nn.Parameter(torch.randn(1, WIDTH))
        self.register_buffer("scale", torch.randn(WIDTH))
        self.second = nn.ModuleList(Block() for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.first:
            x = block(x)
        x = torch.cat([x * self.scale, self.tokens])
        for block in self.second:
            x = block(x)
        return x


@report("35", "vllm-omni#1486", "every list of blocks is found, and the root's own tensors")
@EITHER
def test_every_list_and_the_root(offloader: Offloader, sim, level: dict) -> None:
    offloaded(offloader, model_of("everywhere", Everywhere, 3, WIDTH), use_stream=True, **level).check()


@report("37", "vllm-omni#2935", "two denoisers, each offloaded")
@EITHER
def test_two_denoisers(offloader: Offloader, sim, level: dict) -> None:
    offloaded(offloader, "T12", use_stream=True, **level).check()


@report("38", "vllm-omni#4247", "a weight is on the device before a kernel takes its address")
@EITHER
def test_a_kernel_that_takes_an_address(offloader: Offloader, sim, level: dict) -> None:
    offloaded(offloader, "T6", **level).check(names=["a raw pointer"])


# --- Devices of inputs and models -------------------------------------------------------------------------------------


def device_of(module: nn.Module) -> torch.device:
    """What `module.device` says in Diffusers and transformers."""
    return next(module.parameters()).device


@report("40", "diffusers#14252", "an offloaded module says the device on which it runs")
@EITHER
def test_the_device_of_a_module(offloader: Offloader, sim, level: dict) -> None:
    pair = offloaded(offloader, "T1", **level)
    assert device_of(pair.offloaded).type == "sim"
    pair.check(passes=1)
    assert device_of(pair.offloaded).type == "sim"


class NoisyDecoder(Autoencoder):
    """Makes tensors on its own device, as decoders do."""

    def decode(self, z: torch.Tensor) -> torch.Tensor:
        return super().decode(z + torch.linspace(-1, 1, z.shape[-1], device=device_of(self)))


@report("41", "diffusers#14140", "a decoder that makes tensors on its own device")
def test_a_decoder_that_asks_for_its_device(offloader: Offloader, sim) -> None:
    calls = {"decode": SHAPES["T3"].calls["decode"]}
    offloaded(offloader, model_of("noisy", NoisyDecoder, **calls), **LEAVES).check()


@report("43", "diffusers#11162", "inputs on the cpu are moved")
@EITHER
def test_inputs_on_the_cpu(offloader: Offloader, sim, level: dict) -> None:
    pair = offloaded(offloader, "T1", **level)
    for seed in range(3):
        x = Inputs("cpu", seed).tensor(3, WIDTH)
        if not offloader.hooks:  # only a hook sees inputs before the forward does
            with pytest.raises(RuntimeError, match="same device"):
                pair.offloaded(x)
            x = x.to("sim")
        assert_same_bits(pair.offloaded(x), pair.resident(x.to("sim")))


@report("44", "diffusers#8523", "constants that are put on the model's device")
def test_constants_on_the_models_device(offloader: Offloader, sim) -> None:
    pair = offloaded(offloader, "T3", **LEAVES)
    for model in (pair.resident, pair.offloaded):
        mean = torch.linspace(0, 1, 4).view(1, 4, 1, 1).to(device_of(model))
        latents = model.encode(Inputs("sim", 1).tensor(1, 3, 6, 6))
        model.result = (latents - mean).cpu()
    assert_same_bits(pair.offloaded.result, pair.resident.result)


@report("46", "diffusers#2973", "noise is drawn on the same device, offloaded or not")
def test_noise_is_the_same(offloader: Offloader, sim) -> None:
    pair = offloaded(offloader, "T1", **LEAVES)
    outputs = []
    for model in (pair.resident, pair.offloaded):
        generator = torch.Generator(device_of(model)).manual_seed(3)
        outputs.append(model(torch.randn(3, WIDTH, generator=generator, device=device_of(model))))
    assert_same_bits(outputs[1], outputs[0])


class Rotary(nn.Module):
    """Puts positions on the device of its weights."""

    def __init__(self) -> None:
        super().__init__()
        self.proj = nn.Linear(WIDTH, WIDTH)
        self.register_buffer("inv_freq", torch.randn(WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        positions = torch.arange(x.shape[0], dtype=x.dtype).to(device_of(self))
        return self.proj(x) * torch.outer(positions, self.inv_freq).cos()


@report("47", "sglang#33864", "rotary positions made on the module's device")
def test_positions_on_the_modules_device(offloader: Offloader, sim) -> None:
    offloaded(offloader, model_of("rotary", Rotary, 3, WIDTH), **LEAVES).check()


@report("49", "compel#23", "a library asks for the device and calls the embedding itself")
def test_a_library_calls_the_embedding(offloader: Offloader, sim) -> None:
    pair = offloaded(offloader, "T7", **LEAVES)
    for model in (pair.resident, pair.offloaded):
        tokens = torch.arange(5).to(device_of(model))
        model.result = model.embedding(tokens).cpu()
    assert_same_bits(pair.offloaded.result, pair.resident.result)


@report("50", "ai-toolkit#935", "two encoders on two devices")
def test_two_encoders_on_two_devices(offloader: Offloader, simulate) -> None:
    simulate(devices=2)
    for index in (1, 0):
        pair = offloaded(offloader, "T7", f"sim:{index}", **LEAVES)
        assert device_of(pair.offloaded) == torch.device("sim", index)
        pair.check()


# --- Host memory ------------------------------------------------------------------------------------------------------


def one_pass_seconds(offloader: Offloader, sim, **options: Any) -> float:
    pair = offloaded(offloader, WIDE, use_stream=True, **options)
    x = torch.ones(3, 256, device="sim")
    with torch.no_grad():
        for _ in range(3):
            pair.offloaded(x)
        torch.sim.synchronize()
        begin = sim.host_clock()
        pair.offloaded(x)
        torch.sim.synchronize()
    return sim.host_clock() - begin


@report("88", "diffusers#11106", "low_cpu_mem_usage is not several times slower")
def test_low_memory_is_not_slow(offloader: Offloader, sim) -> None:
    fast = one_pass_seconds(offloader, sim, **BLOCKS)
    assert one_pass_seconds(offloader, sim, low_cpu_mem_usage=True, **BLOCKS) < 3 * fast


def peak_growth(run: Callable[[], Any]) -> int:
    """By how much the resident set of the process grew at its highest, bytes."""

    def high_water_mark() -> int:
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) * 1024

    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")  # forget the peak so far
    before = high_water_mark()
    run()
    return high_water_mark() - before


LARGE = 1536  # a layer of 9 MiB


@report("89", "Helios#141", "enabling holds no second copy of the model")
def test_enabling_holds_no_second_copy(offloader: Offloader, sim) -> None:
    model = nn.Sequential(*(nn.Linear(LARGE, LARGE) for _ in range(10)))
    weights = sum(parameter.nbytes for parameter in model.parameters())
    grown = peak_growth(lambda: offloader(model, use_stream=True, **LEAVES))
    assert grown < weights / 2  # on the simulator: two layers for the device, one in transit


@report("91", "pytorch#171662", "page-locked memory is not rounded up")
def test_pinned_memory_is_not_rounded_up(offloader: Offloader, sim) -> None:
    model = nn.Sequential(*(nn.Linear(300, 300) for _ in range(6)))  # 361,200 bytes each: a power of two needs 524,288
    offloader(model, use_stream=True, **LEAVES)
    weights = sum(parameter.nbytes for parameter in model.parameters())
    assert 0 < offloader.pinned_bytes(model) <= 1.05 * weights


@report("92", "vllm#56410", "host memory is what was asked for")
def test_pinned_memory_is_what_the_weights_need(offloader: Offloader, sim) -> None:
    model = nn.Sequential(*(nn.Linear(300, 300, bias=False) for _ in range(6)))
    offloader(model, use_stream=True, **LEAVES)
    for _ in range(3):
        model(torch.ones(1, 300, device="sim"))
    assert 0 < offloader.pinned_bytes(model) <= 1.05 * 6 * 360_000


@report("94", "diffusers#7970", "memory is flat over 25 calls")
@pytest.mark.parametrize("use_stream", [False, True])
def test_memory_is_flat_over_calls(offloader: Offloader, sim, use_stream: bool) -> None:
    pair = offloaded(offloader, WIDE, use_stream=use_stream, **LEAVES)
    x = torch.ones(3, 256, device="sim")

    def calls() -> None:
        with torch.no_grad():
            for _ in range(25):
                pair.offloaded(x)

    calls()
    held = torch.sim.memory_allocated()
    assert peak_growth(calls) < 4 * WIDE_BLOCK
    assert torch.sim.memory_allocated() == held


@report("95", "verl#6193", "enabling again holds no second copy either")
def test_enabling_again_holds_no_second_copy(offloader: Offloader, sim) -> None:
    model = nn.Sequential(*(nn.Linear(LARGE, LARGE) for _ in range(10)))
    weights = sum(parameter.nbytes for parameter in model.parameters())
    offloader(model, use_stream=True, **LEAVES)
    grown = peak_growth(lambda: offloader(model, use_stream=True, **LEAVES))
    assert grown < weights / 2


@report("97", "ComfyUI#10638", "a limit on page-locked memory is survived")
@EITHER
def test_a_pin_failure_is_survived(offloader: Offloader, sim, level: dict) -> None:
    sim.inject("pin_failure", after=2, count=0)
    offloaded(offloader, "T1", use_stream=True, **level).check()


@report("98", "ComfyUI#11531", "also when the very first page-locked block is refused")
def test_the_first_pin_failure_is_survived(offloader: Offloader, sim) -> None:
    sim.inject("pin_failure")
    offloaded(offloader, "T1", use_stream=True, **LEAVES).check()


@report("100", "ComfyUI#14969", "users set how much is page-locked")
def test_a_cap_on_pinned_memory(offloader: Offloader, sim) -> None:
    pair = offloaded(offloader, WIDE, use_stream=True, host_budget=2 * WIDE_BLOCK, **BLOCKS)
    assert 0 < offloader.pinned_bytes(pair.offloaded) <= 2 * WIDE_BLOCK
    pair.check()


@report("101", "Wan2GP#1956", "the device holds no more than planned, during enabling and passes")
@pytest.mark.parametrize("use_stream", [False, True])
def test_device_memory_stays_in_the_plan(offloader: Offloader, sim, use_stream: bool) -> None:
    model = Wide()
    torch.sim.reset_peak_memory_stats()
    offloader(model, use_stream=use_stream, **BLOCKS)
    x = torch.ones(3, 256, device="sim")
    with torch.no_grad():
        for _ in range(4):
            model(x)
    activations = 4 * 3 * 256 * 4
    assert torch.sim.max_memory_allocated() <= (1 + use_stream) * (WIDE_BLOCK + 1024) + activations


@report("103", "vllm-omni#1686", "memory is page-locked once, not at every move")
@pytest.mark.parametrize("low_memory", [False, True])
def test_memory_is_pinned_once(offloader: Offloader, sim, low_memory: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    pair = offloaded(offloader, WIDE, use_stream=True, low_cpu_mem_usage=low_memory, **BLOCKS)
    pair.check(passes=2)
    pinned = []
    original = torch.Tensor.pin_memory
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda t, *a, **k: pinned.append(t.nbytes) or original(t, *a, **k))
    pair.check(passes=10)
    assert sum(pinned) == 0


# --- State ------------------------------------------------------------------------------------------------------------


@report("130", "diffusers#7448", "two pipelines share a module, and both offload it")
def test_two_pipelines_share_modules(offloader: Offloader, sim) -> None:
    pair = offloaded(offloader, "T12", use_stream=True, **LEAVES)
    second = Pipeline(**pair.offloaded.components)
    for part in second.components.values():
        offloader(part, use_stream=True, **LEAVES)
    pair.check()


@report("131", "diffusers#5281", "two pipelines of their own run in turn")
def test_two_pipelines_in_turn(offloader: Offloader, sim) -> None:
    pairs = [offloaded(offloader, "T12", use_stream=True, **LEAVES) for _ in range(2)]
    for _ in range(3):
        for pair in pairs:
            pair.check(passes=1)


@report("133", "accelerate#2701", "buffers are handled like parameters")
@EITHER
def test_buffers(offloader: Offloader, sim, level: dict) -> None:
    pair = offloaded(offloader, "T9", **level)
    pair.check()
    pair.check_state()


@report("134", "diffusers#10958", "an entry outside forward, at leaf level without streams")
def test_an_entry_outside_forward(offloader: Offloader, sim) -> None:
    offloaded(offloader, "T3", **LEAVES).check()


@report("136", "diffusers#2531", "a pipeline that sends inputs to text_encoder.device")
def test_a_pipeline_that_asks_the_encoder_for_its_device(offloader: Offloader, sim) -> None:
    pair = offloaded(offloader, "T12", **LEAVES)
    for pipe in (pair.resident, pair.offloaded):
        device = device_of(pipe.text_encoder)
        text = pipe.text_encoder(torch.arange(5)[None].to(device)).mean()
        pipe.result = pipe.expert(torch.ones(2, WIDTH, device=device) + text).cpu()
    assert_same_bits(pair.offloaded.result, pair.resident.result)


class MixedTied(Tied):
    """Tied embeddings in float32, the rest in bfloat16."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks.to(torch.bfloat16)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens).to(torch.bfloat16)
        for block in self.blocks:
            x = block(x)
        return self.head(x.float())


@report("137", "diffusers#8644", "a pre-built encoder with a shared embedding kept in float32")
@EITHER
def test_a_shared_embedding_in_another_type(offloader: Offloader, sim, level: dict) -> None:
    calls = SHAPES["T7"].calls
    offloaded(offloader, model_of("mixed", MixedTied, **calls), use_stream=True, **level).check()


@report("139", "transformers#27412", "an offloaded model is saved with its weights")
@EITHER
def test_saving(offloader: Offloader, sim, level: dict, tmp_path: Path) -> None:
    pair = offloaded(offloader, "T1", use_stream=True, **level)
    pair.check(passes=1)
    torch.save(pair.offloaded.state_dict(), tmp_path / "weights.pt")
    saved = torch.load(tmp_path / "weights.pt", weights_only=True)
    expected = pair.resident.state_dict()
    assert list(saved) == list(expected)
    for name, tensor in expected.items():
        assert saved[name].device.type == "cpu"
        assert_same_bits(saved[name], tensor, name)


@report("140", "diffusers#14346", "moving an offloaded model moves it, or raises")
@EITHER
def test_moving_moves_or_raises(offloader: Offloader, sim, level: dict) -> None:
    pair = offloaded(offloader, "T1", use_stream=True, **level)
    pair.check(passes=1)
    pair.resident = None
    try:
        pair.offloaded.to("cpu")
    except (RuntimeError, ValueError):
        return
    gc.collect()
    assert torch.sim.memory_allocated() == 0
    x = Inputs("cpu", 0).tensor(3, WIDTH)
    assert_same_bits(pair.offloaded(x), pair.shape.build(0)(x))


class OneParameter(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.weight


@report("143", "accelerate#767", "a model with one parameter of its own")
@EITHER
@pytest.mark.parametrize("use_stream", [False, True])
def test_a_model_with_one_parameter(offloader: Offloader, sim, level: dict, use_stream: bool) -> None:
    offloaded(offloader, model_of("one", OneParameter, 3, WIDTH), use_stream=use_stream, **level).check()


# --- Found by reading code --------------------------------------------------------------------------------------------


@report("L1", "block level with a stream", "a model that owns nothing but a list of blocks")
def test_a_root_that_is_only_a_list(offloader: Offloader, sim) -> None:
    offloaded(offloader, WIDE, use_stream=True, **BLOCKS).check()
    offloaded(offloader, "T5", use_stream=True, **BLOCKS).check()


class TableFirst(nn.Module):
    """Reads a root parameter before any layer runs."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(64, 256))
        self.layer = nn.Linear(256, 256)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x + self.table.sum(0))


@report("L2", "leaf level with a stream", "a root parameter is read before any layer")
def test_a_root_parameter_before_any_layer(offloader: Offloader, sim) -> None:
    offloaded(offloader, model_of("table", TableFirst, 3, 256), use_stream=True, **LEAVES).check()


@report("L11", "buffers with a stream", "running statistics and counters are kept")
@EITHER
def test_statistics_and_counters_are_kept(offloader: Offloader, sim, level: dict) -> None:
    pair = offloaded(offloader, "T9", use_stream=True, **level)
    pair.check(passes=4, names=["forward"])
    pair.check_state()


@report("L13", "half() with a stream", "a change of type is done or refused")
@EITHER
def test_a_change_of_type(offloader: Offloader, sim, level: dict) -> None:
    pair = offloaded(offloader, "T1", use_stream=True, **level)
    pair.check(passes=1)
    try:
        pair.offloaded.to(torch.float16)
    except (RuntimeError, ValueError):
        pair.check()
        return
    pair.resident.to(torch.float16)
    for seed in range(3):
        x = Inputs("sim", seed).tensor(3, WIDTH).to(torch.float16)
        assert_same_bits(pair.offloaded(x), pair.resident(x))


@report("L14", "enabling twice", "the second call reconfigures, or says why not")
@pytest.mark.parametrize("use_stream", [False, True])
def test_enabling_twice(offloader: Offloader, sim, use_stream: bool) -> None:
    pair = offloaded(offloader, WIDE, use_stream=use_stream, **LEAVES)
    offloader(pair.offloaded, use_stream=use_stream, offload_type="block_level", num_blocks_per_group=2)
    x = torch.ones(3, 256, device="sim")
    for _ in range(2):
        pair.offloaded(x)
    before = sim.stats()["bytes_h2d"]
    held_before = torch.sim.memory_allocated()
    torch.sim.reset_peak_memory_stats()
    with torch.no_grad():
        pair.offloaded(x)
    peak = torch.sim.max_memory_allocated() - held_before
    assert sim.stats()["bytes_h2d"] > before
    if offloader.name != "noria":  # its arena is there all the time
        assert peak >= 2 * WIDE_BLOCK
    pair.check()


@report("L16", "re-applying after an adapter", "the settings are the root's, not those of a nested block")
def test_settings_survive_an_adapter(offloader: Offloader, sim) -> None:
    pair = offloaded(offloader, "T3", offload_type="block_level", num_blocks_per_group=1, block_modules=["decoder"])
    pair.check(passes=1)
    for model in (pair.resident, pair.offloaded):
        layer = model.decoder.layers[1]
        model.decoder.layers[1] = nn.Sequential(layer, nn.Conv2d(8, 8, 1, device=device_of(layer)))
        with torch.no_grad():
            model.decoder.layers[1][1].weight.fill_(0.1)
            model.decoder.layers[1][1].bias.fill_(0.2)
    offloader.layers_changed(pair.offloaded)
    pair.check()


@report("L17", "ending it", "a public call ends offloading, and the model runs anywhere")
@EITHER
def test_ending_it(offloader: Offloader, sim, level: dict) -> None:
    pair = offloaded(offloader, "T1", use_stream=True, **level)
    pair.check(passes=1)
    offloader.remove(pair.offloaded)
    x = Inputs("cpu", 0).tensor(3, WIDTH)
    assert_same_bits(pair.offloaded(x), pair.shape.build(0)(x))
    pair.offloaded.to("sim")
    pair.check()


@report("L19", "an autoencoder's decode with a stream", "a hundred calls cost what the first ones cost")
def test_a_hundred_decodes(offloader: Offloader, sim) -> None:
    pair = offloaded(offloader, "T3", use_stream=True, **LEAVES)
    z = torch.ones(1, 4, 6, 6, device="sim")
    seconds = []
    with torch.no_grad():
        pair.offloaded.decode(z)
        objects = None
        for number in range(100):
            begin = sim.host_clock()
            pair.offloaded.decode(z)
            torch.sim.synchronize()
            seconds.append(sim.host_clock() - begin)
            if number in (20, 99):
                gc.collect()
                lengths = sum(len(o) for o in gc.get_objects() if isinstance(o, list))
                assert objects is None or lengths - objects < 300
                objects = lengths
    assert max(seconds[-5:]) <= 1.05 * max(seconds[:5])
    pair.check(names=["decode"])


@report("L20", "a convolution at the root", "block level reaches it from decode")
def test_a_convolution_at_the_root(offloader: Offloader, sim) -> None:
    offloaded(offloader, "T3", **BLOCKS).check(names=["decode"])


@report("L22", "a block that is skipped after it was fetched", "it does not stay for long")
def test_skipped_blocks_do_not_stay(offloader: Offloader, sim) -> None:
    model = Skippable()
    offloader(model, use_stream=True, **BLOCKS)
    x = torch.ones(3, 256, device="sim")
    with torch.no_grad():
        for skip in ((), (), (2,), (4,), (2, 4), (1, 3, 5)):
            model(x, skip)
    gc.collect()
    assert torch.sim.memory_allocated() <= 2 * (WIDE_BLOCK + 1024) + 4096


class Skippable(Wide):
    def forward(self, x: torch.Tensor, skip: tuple[int, ...] = ()) -> torch.Tensor:
        for index, block in enumerate(self.blocks):
            if index not in skip:
                x = torch.tanh(block(x))
        return x


@report("L23", "groups of two blocks", "any member brings the group, and the last one lets it go")
@pytest.mark.parametrize("skip", [(0,), (1,), (0, 3), (1, 2)], ids=str)
def test_any_member_of_a_group(offloader: Offloader, sim, skip: tuple[int, ...]) -> None:
    shape = model_of("skippable", Skippable, forward=lambda model, inputs: model(inputs.tensor(3, 256), skip))
    pair = offloaded(offloader, shape, offload_type="block_level", num_blocks_per_group=2)
    pair.check()
    with torch.no_grad():
        held = held_after(pair, lambda: pair.offloaded(torch.ones(3, 256, device="sim"), skip))
    assert held <= 2 * (WIDE_BLOCK + 1024) + 4096


@report("L25", "a host without accelerator", "onload_device='cpu' works")
def test_a_host_without_accelerator(offloader: Offloader, fresh_python, request: pytest.FixtureRequest) -> None:
    script = f"""
    import sys
    sys.path.insert(0, {str(Path(__file__).parent)!r})
    import torch
    from offloaders import named
    from shapes import SHAPES
    model, x = SHAPES["T1"].build(0), torch.ones(3, 16)
    named({request.node.callspec.params["offloader"]!r})(model, "cpu", offload_type="leaf_level")
    print(torch.equal(model(x), SHAPES["T1"].build(0)(x)))
    """
    assert fresh_python(script) == "True"


@report("L26", "the second device of two", "streams belong to the device that was asked for")
@EITHER
def test_the_second_device(offloader: Offloader, simulate, level: dict) -> None:
    sim = simulate(devices=2)
    pair = offloaded(offloader, "T1", "sim:1", use_stream=True, **level)
    pair.check()
    assert torch.sim.current_device() == 0
    assert sim.stats(0)["copies_h2d"] == 0


@report("L28", "host syncs", "a steady pass makes the host wait for nothing")
@EITHER
def test_a_steady_pass_has_no_host_sync(offloader: Offloader, sim, level: dict) -> None:
    pair = offloaded(offloader, WIDE, use_stream=True, **level)
    x = torch.ones(3, 256, device="sim")
    with torch.no_grad():
        for _ in range(4):
            pair.offloaded(x)
        before = sim.stats()["host_syncs"]
        pair.offloaded(x)
        assert sim.stats()["host_syncs"] == before


class KeepsACache(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Caching() for _ in range(3))

    def forward(self, x: torch.Tensor, cache: list[Any]) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x, cache)
        return x


class Caching(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor, cache: list[Any]) -> torch.Tensor:
        cache.append(x)
        return self.linear(x)


@report("L29", "a list passed by position", "the callee appends to the caller's list")
@EITHER
def test_a_list_passed_by_position(offloader: Offloader, sim, level: dict) -> None:
    pair = offloaded(offloader, model_of("cache", KeepsACache), **level)
    cache: list[Any] = []
    pair.offloaded(torch.ones(2, WIDTH, device="sim"), cache)
    assert len(cache) == 3


class ManySmall(nn.Module):
    """Twelve bare tensors and two norms in each of three parts."""

    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.ModuleList(Small() for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for part in self.parts:
            x = part(x)
        return x


class Small(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scales = nn.ParameterList(torch.randn(WIDTH) for _ in range(12))
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for scale in self.scales:
            x = x * scale
        return self.norms[1](self.norms[0](x))


@report("L31", "many small tensors", "they travel in one copy per group")
def test_small_tensors_travel_together(offloader: Offloader, sim) -> None:
    pair = offloaded(offloader, model_of("small", ManySmall, 2, WIDTH), use_stream=True, **BLOCKS)
    pair.check()
    x = torch.ones(2, WIDTH, device="sim")
    pair.offloaded(x)
    before = sim.stats()["copies_h2d"]
    pair.offloaded(x)
    assert sim.stats()["copies_h2d"] - before == 3


@report("L32", "tied weights", "they have one copy in host memory")
@EITHER
def test_tied_weights_are_pinned_once(offloader: Offloader, sim, level: dict) -> None:
    model = TiedLarge()
    offloader(model, use_stream=True, **level)
    assert offloader.pinned_bytes(model) <= 1.1 * (512 * 256 * 4 + 256 * 257 * 4)


class TiedLarge(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([nn.Embedding(512, 256), nn.Linear(256, 256), nn.Linear(256, 512, bias=False)])
        self.blocks[2].weight = self.blocks[0].weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            tokens = block(tokens)
        return tokens


@report("L34", "wrapper subclasses", "a weight of an unknown class with inner tensors")
@EITHER
@pytest.mark.parametrize("use_stream", [False, True])
def test_a_weight_of_an_unknown_class(offloader: Offloader, sim, level: dict, use_stream: bool) -> None:
    offloaded(offloader, "T8", use_stream=use_stream, **level).check()


@report("L35", "an adapter that fails to load", "the model goes on being offloaded")
def test_an_adapter_that_fails_to_load(offloader: Offloader, sim) -> None:
    pair = offloaded(offloader, "T11", use_stream=True, **LEAVES)
    pair.check(passes=1, names=["before"])
    for model in (pair.resident, pair.offloaded):
        for index, block in enumerate(model.blocks[:2]):
            block[1] = LowRank(block[1], index)  # the third was not found in the file, and the loader raised
    offloader.layers_changed(pair.offloaded)
    pair.check(names=["before"])
    pair.resident = None
    gc.collect()
    assert torch.sim.memory_allocated() < sum(parameter.nbytes for parameter in pair.offloaded.parameters()) + 4096


@report("L37", "out of memory in decode", "the backend's own error, and the next call is right")
def test_out_of_memory_in_decode(offloader: Offloader, sim) -> None:
    pair = offloaded(offloader, "T3", use_stream=True, **LEAVES)
    pair.check(passes=2, names=["decode"])
    with RaisesOnce(pair.offloaded.decoder.layers[1], torch.OutOfMemoryError), pytest.raises(torch.OutOfMemoryError):
        pair.offloaded.decode(torch.ones(1, 4, 6, 6, device="sim"))
    pair.check(names=["decode"])
