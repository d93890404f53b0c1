"""Reports about adapters, training and threads, one test each; test_offload_reports.py has the others."""

from __future__ import annotations

import copy
import threading
from typing import Any

import pytest
import torch
from accelerate.hooks import AlignDevicesHook, add_hook_to_module
from offloaders import Offloader
from pairs import Pair
from reports import EITHER, LEAVES, offloaded, report
from shapes import WIDTH, Inputs, LowRank, OnlyAList, assert_same_bits
from torch import nn


def adapt(offloader: Offloader, pair: Pair) -> None:
    """Puts an adapter around a layer of every block of both models of T11."""
    for model in (pair.resident, pair.offloaded):
        for index, block in enumerate(model.blocks):
            block[1] = LowRank(block[1], index)
    offloader.layers_changed(pair.offloaded)


def delete_adapters(offloader: Offloader, pair: Pair) -> None:
    """Takes them away again."""
    for model in (pair.resident, pair.offloaded):
        for block in model.blocks:
            block[1] = block[1].base_layer
    offloader.layers_changed(pair.offloaded)


# --- Adapters ---------------------------------------------------------------------------------------------------------


@report("52", "diffusers#12396", "the model runs after its adapters were deleted")
@EITHER
@pytest.mark.parametrize("use_stream", [False, True])
def test_deleted_adapters(offloader: Offloader, sim, level: dict, use_stream: bool) -> None:
    pair = offloaded(offloader, "T11", use_stream=use_stream, **level)
    for _ in range(2):
        pair.check(passes=2, names=["before"])
        adapt(offloader, pair)
        pair.check(passes=2, names=["before"])
        delete_adapters(offloader, pair)
    pair.check(names=["before"])


@report("53", "diffusers#10914", "a component whose hook only aligns inputs stays where it is")
def test_a_component_with_a_hook_that_only_aligns_inputs(offloader: Offloader, sim) -> None:
    pair = offloaded(offloader, "T11", use_stream=True, **LEAVES)
    encoder = nn.Linear(WIDTH, WIDTH).to("sim")
    add_hook_to_module(encoder, AlignDevicesHook(execution_device="sim", io_same_device=True))
    adapt(offloader, pair)
    x = encoder(torch.ones(3, WIDTH))
    assert_same_bits(pair.offloaded(x.to("sim")), pair.resident(x.to("sim")))
    assert encoder.weight.device.type == "sim"
    with pytest.raises(ValueError, match=r"(?i)accelerate"):
        offloader(encoder, **LEAVES)
    assert encoder.weight.device.type == "sim"
    pair.check(names=["before"])


@report("55", "diffusers#5060", "an embedding that fails to load changes nothing")
@EITHER
def test_an_embedding_that_fails_to_load(offloader: Offloader, sim, level: dict) -> None:
    pair = offloaded(offloader, "T7", use_stream=True, **level)
    pair.check(passes=1)
    for model in (pair.resident, pair.offloaded):
        state = model.state_dict()
        state["embedding.weight"] = torch.zeros(3, 5)
        with pytest.raises(RuntimeError, match="size mismatch"):
            model.load_state_dict(state)
    pair.check()
    pair.check_state()


@report("56", "sglang#16297", "merging and unmerging see the weights themselves")
@EITHER
@pytest.mark.parametrize("use_stream", [False, True])
def test_merging_sees_the_weights(offloader: Offloader, sim, level: dict, use_stream: bool) -> None:
    pair = offloaded(offloader, "T11", use_stream=use_stream, **level)
    adapt(offloader, pair)
    for sign in (1, -1):
        for model in (pair.resident, pair.offloaded):
            for block in model.blocks:
                block[1].merge(sign)
        pair.check(passes=2, names=["before"])
        pair.check_state()


@report("58", "diffusers#12440", "latents are encoded first, and adapters trained on them then")
def test_adapters_are_trained_on_latents_that_were_encoded_before(offloader: Offloader, sim) -> None:
    losses: list[list[torch.Tensor]] = []
    vae = offloaded(offloader, "T3", use_stream=True, **LEAVES)
    pair = offloaded(offloader, "T11", use_stream=True, **LEAVES)
    adapt(offloader, pair)
    for coder, model in ((vae.resident, pair.resident), (vae.offloaded, pair.offloaded)):
        with torch.no_grad():
            latents = [coder.encode(Inputs("sim", seed).tensor(1, 3, 4, 4)).reshape(-1, WIDTH) for seed in range(3)]
        losses.append(train_adapters(model, latents))
    assert_same_bits(losses[1], losses[0])
    pair.check_state()


def train_adapters(model: nn.Module, latents: list[torch.Tensor]) -> list[torch.Tensor]:
    """Two epochs with a frozen base; the loss of every step."""
    model.requires_grad_(False)
    adapters = [weight for block in model.blocks for weight in (block[1].down, block[1].up)]
    for weight in adapters:
        weight.requires_grad_()
    optimizer = torch.optim.AdamW(adapters, lr=1e-2, foreach=False)
    losses = []
    for latent in latents * 2:
        optimizer.zero_grad()
        loss = model(latent).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return losses


# --- Training ---------------------------------------------------------------------------------------------------------


class Recomputed(OnlyAList):
    """Blocks whose activations are computed again in the backward, in either of PyTorch's two ways."""

    reentrant = False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = torch.utils.checkpoint.checkpoint(block, x, use_reentrant=self.reentrant)
        return x


@report("157", "SimpleTuner#1984", "gradient checkpointing with a stream")
@EITHER
@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpointing_with_a_stream(offloader: Offloader, sim, level: dict, reentrant: bool) -> None:
    torch.manual_seed(0)
    resident = Recomputed()
    resident.reentrant = reentrant
    model = copy.deepcopy(resident)
    resident.to("sim")
    offloader(model, use_stream=True, **level)
    optimizers = [torch.optim.SGD(one.parameters(), lr=1e-2, foreach=False) for one in (resident, model)]
    for number in range(4):
        gradients = []
        for one, optimizer in zip((resident, model), optimizers, strict=True):
            x = Inputs("sim", number).tensor(3, WIDTH).requires_grad_()
            optimizer.zero_grad()
            one(x).square().sum().backward()
            gradients.append([x.grad, *(weight.grad for weight in one.parameters())])
            optimizer.step()
        assert_same_bits(gradients[1], gradients[0], f"step {number}")
    for name, tensor in resident.state_dict().items():
        assert_same_bits(model.state_dict()[name], tensor, name)


# --- Threads ----------------------------------------------------------------------------------------------------------


@report("155", "diffusers#3672", "two threads call one model, each with inputs of its own")
@EITHER
def test_two_threads_call_one_model(offloader: Offloader, sim, level: dict) -> None:
    pair = offloaded(offloader, "T1", use_stream=True, **level)
    inputs = [Inputs("sim", seed).tensor(3, WIDTH) for seed in range(2)]
    with torch.no_grad():
        expected = [pair.resident(x) for x in inputs]
    together = threading.Barrier(2)
    results: list[list[Any]] = [[], []]

    def run(number: int) -> None:
        together.wait()
        try:
            with torch.no_grad():
                results[number] += [pair.offloaded(inputs[number]) for _ in range(10)]
        except BaseException as error:
            results[number].append(error)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    torch.sim.synchronize()
    for number, result in enumerate(results):
        assert [error for error in result if isinstance(error, BaseException)] == []
        for value in result:
            assert_same_bits(value, expected[number])
