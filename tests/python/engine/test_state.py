"""What else happens to a model while it is offloaded: failures, copies, moves, edits, other threads, other hooks."""

from __future__ import annotations

import copy
import gc
import inspect
import io
import pickle
import threading
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from pairs import Pair
from shapes import SHAPES, WIDTH, Inputs, Interrupted, RaisesOnce, Stack, assert_same_bits
from torch import nn

import noria


@pytest.fixture
def pair(device: torch.device) -> Pair:
    """T1, not yet offloaded."""
    return Pair(SHAPES["T1"], device)


def smallest(pair: Pair, **options: Any) -> noria.Offload:
    """Offloads with the smallest budget, where a leak of one group shows at the next call."""
    budget = pair.smallest_budget(granularity="leaf")
    return noria.offload(pair.offloaded, pair.device, budget=budget, granularity="leaf", **options)


def build(seed: int = 0) -> Stack:
    return SHAPES["T1"].build(seed)


def call(model: nn.Module, device: torch.device, seed: int = 0, **options: Any) -> torch.Tensor:
    return model(Inputs(device, seed).tensor(3, WIDTH), **options)


# --- Failures ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("where", ["proj_in", "blocks.0.up", "blocks.3", "norm"])
@pytest.mark.parametrize("error", [Interrupted, KeyboardInterrupt, SystemExit])
def test_an_exception_in_a_forward_leaves_the_next_call_right(pair: Pair, where: str, error: type) -> None:
    smallest(pair)
    pair.check(passes=1, names=["all blocks"])
    for _ in range(3):
        with RaisesOnce(pair.offloaded.get_submodule(where), error), pytest.raises(error):
            call(pair.offloaded, pair.device)
        pair.check(passes=1)
    pair.check_state()


def test_an_interrupt_in_an_entry_point_without_hooks_leaves_the_next_call_right(device: torch.device) -> None:
    pair = Pair(SHAPES["T3"], device)
    smallest(pair)
    for _ in range(3):
        with RaisesOnce(pair.offloaded.decoder.layers[1], KeyboardInterrupt), pytest.raises(KeyboardInterrupt):
            pair.offloaded.decode(Inputs(device, 0).tensor(1, 4, 6, 6))
        pair.check(passes=1)


@pytest.mark.parametrize("then", ["a weight", "a layer", "resident", "resize", "remove"])
def test_what_an_interrupt_left_behind_is_in_nobodys_way(pair: Pair, then: str) -> None:
    handle = smallest(pair)
    pair.check(passes=1, names=["all blocks"])
    with RaisesOnce(pair.offloaded.blocks[3], KeyboardInterrupt), pytest.raises(KeyboardInterrupt):
        call(pair.offloaded, pair.device)
    x = Inputs(pair.device, 0).tensor(3, WIDTH)
    for index in range(len(pair.offloaded.blocks)):
        ours, theirs = (model.blocks[index].up for model in (pair.offloaded, pair.resident))
        if then == "a weight":
            assert_same_bits(ours.weight * 2, theirs.weight * 2)
        elif then == "a layer":
            assert_same_bits(ours(x), theirs(x))
        elif then == "resident":
            with handle.resident(ours):
                assert_same_bits(ours(x), theirs(x))
    if then == "resize":
        handle.resize(2 * handle.status().budget_bytes)
    if then == "remove":
        handle.remove(pair.device)
    pair.check()
    pair.check_state()


@pytest.mark.parametrize("alive", [False, True], ids=["ended", "idle"])
@pytest.mark.parametrize("then", ["a call", "resident", "resize"])
def test_what_an_interrupt_left_on_another_thread_is_in_nobodys_way(pair: Pair, then: str, alive: bool) -> None:
    """The thread has ended, or does other work for ever: nobody waits for it, and it may come back."""
    smallest = pair.smallest_budget(granularity="leaf")
    handle = noria.offload(pair.offloaded, pair.device, budget=2 * smallest, granularity="leaf")
    interrupted, go_on = threading.Event(), threading.Event()

    def work() -> None:
        with RaisesOnce(pair.offloaded.blocks[1], KeyboardInterrupt), pytest.raises(KeyboardInterrupt):
            call(pair.offloaded, pair.device, 0)
        interrupted.set()
        if alive:
            go_on.wait()
            assert_same_bits(call(pair.offloaded, pair.device, 3), call(pair.resident, pair.device, 3))

    thread = threading.Thread(target=work)
    thread.start()
    interrupted.wait()
    if not alive:
        thread.join()
    if then == "a call":
        handle.resize(smallest)
    elif then == "resident":
        with handle.resident(pair.offloaded.norm):
            pair.check(passes=1)
    else:
        handle.resize(smallest)
        pair.check(passes=1)
        assert handle.status().device_bytes <= smallest
    pair.check()
    go_on.set()
    thread.join()
    pair.check()


def test_resident_takes_modules_of_its_own_model_only(pair: Pair) -> None:
    handle = smallest(pair)
    other = build()
    noria.offload(other, pair.device, budget=pair.smallest_budget(granularity="leaf") * 2, granularity="leaf")
    for foreign in (nn.Linear(2, 2), other.blocks[0]):
        with pytest.raises(ValueError, match="no part of the model"), handle.resident(foreign):
            pass
    pair.check(passes=1)


def test_torch_func_sees_the_weights_and_changes_nothing(device: torch.device) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8))
    resident = copy.deepcopy(model).to(device)
    handle = noria.offload(model, device, budget=1024, granularity="leaf")
    x = Inputs(device, 1).tensor(3, 8)

    def gradients(of: nn.Module) -> dict[str, torch.Tensor]:
        def loss(weights: dict[str, torch.Tensor]) -> torch.Tensor:
            return torch.func.functional_call(of, weights, (x,)).square().sum()

        return torch.func.grad(loss)(dict(of.named_parameters()))

    for _ in range(2):
        actual, expected = gradients(model), gradients(resident)
        for name, tensor in expected.items():
            assert_same_bits(actual[name], tensor, name)
        assert_same_bits(model(x), resident(x))
    assert handle.status().passes > 0


@pytest.mark.parametrize("transform", ["jvp", "grad", "vmap"])
def test_a_change_is_taken_up_outside_transforms_only(device: torch.device, transform: str) -> None:
    torch.manual_seed(0)
    models = [nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8)) for _ in range(2)]
    models[1].load_state_dict(models[0].state_dict())
    models[0].to(device)
    noria.offload(models[1], device, budget=1024, granularity="leaf")
    x = Inputs(device, 1).tensor(3, 8)
    results = []
    for model in models:
        torch.manual_seed(1)
        model[0] = nn.Linear(8, 8).to(device)
        if transform == "jvp":
            results.append(torch.func.jvp(model, (x,), (x,)))
        elif transform == "grad":
            results.append(torch.func.grad(lambda y, model=model: model(y).sum())(x))
        else:
            results.append(torch.vmap(model)(x))
        results.append(model(x))
    assert_same_bits(results[2:], results[:2])


def test_a_resident_context_may_end_on_another_thread(pair: Pair) -> None:
    handle = noria.offload(pair.offloaded, pair.device, budget=16 * 1024, granularity="leaf")
    pair.check(passes=1)
    for index in range(len(pair.offloaded.blocks)):
        context = handle.resident(pair.offloaded.blocks[index])
        context.__enter__()
        ending = threading.Thread(target=context.__exit__, args=(None, None, None))
        ending.start()
        ending.join()
    smallest_bytes = pair.smallest_budget(granularity="leaf")
    handle.resize(smallest_bytes)
    assert handle.status().device_bytes <= smallest_bytes
    pair.check()


@pytest.mark.parametrize("after", [1, 5, 20])
def test_out_of_memory_in_a_pass_is_the_devices_own_error_and_the_next_call_is_right(sim, after: int) -> None:
    pair = Pair(SHAPES["T1"], torch.device("sim"))
    smallest(pair)
    pair.check(passes=2, names=["all blocks"])
    x = Inputs(pair.device, 0).tensor(3, WIDTH)
    sim.inject("oom", after=after)
    with pytest.raises(torch.OutOfMemoryError):
        pair.offloaded(x)
    pair.check()


def test_no_device_memory_for_the_budget_leaves_the_model_as_it_was(simulate) -> None:
    simulate(memory="1MiB")
    model = nn.Sequential(*(nn.Linear(512, 512) for _ in range(4)))
    before = [parameter.clone() for parameter in model.parameters()]
    with pytest.raises(torch.OutOfMemoryError):
        noria.offload(model, "sim", budget="3MiB")
    assert all(parameter.device.type == "cpu" for parameter in model.parameters())
    assert all(map(torch.equal, model.parameters(), before))
    assert torch.sim.memory_allocated() == 0
    model(torch.zeros(1, 512))


# --- Enabling and removing --------------------------------------------------------------------------------------------


def test_enabling_twice_takes_the_second_settings(pair: Pair) -> None:
    noria.apply_group_offloading(pair.offloaded, pair.device, offload_type="leaf_level")
    pair.check(passes=1)
    second = noria.apply_group_offloading(
        pair.offloaded, pair.device, offload_type="block_level", num_blocks_per_group=5
    )
    pair.check()
    assert sum("blocks" in group["name"] for group in second.status().groups) == 1
    pair.check_state()


def test_a_part_of_an_offloaded_model_is_refused_with_both_settings(pair: Pair) -> None:
    noria.offload(pair.offloaded, pair.device, budget=12345, granularity="leaf")
    with pytest.raises(ValueError, match=r"blocks\.1.*12345.*54321|12345.*54321"):
        noria.offload(pair.offloaded.blocks[1], pair.device, budget=54321)
    pair.check()


def test_a_model_with_an_offloaded_part_is_refused_with_both_settings(pair: Pair) -> None:
    handle = noria.offload(pair.offloaded.blocks[1], pair.device, budget=12345)
    with pytest.raises(ValueError, match=r"blocks\.1.*12345.*54321"):
        noria.offload(pair.offloaded, pair.device, budget=54321)
    handle.remove()
    noria.offload(pair.offloaded, pair.device, budget=54321)
    pair.check()


def test_removing_twice_does_nothing_the_second_time(pair: Pair) -> None:
    handle = smallest(pair)
    pair.check(passes=1)
    handle.remove(pair.device)
    handle.remove(pair.device)
    noria.remove_group_offloading(pair.offloaded)
    assert not [module for module in pair.offloaded.modules() if module._forward_pre_hooks or module._forward_hooks]
    assert not [name for module in pair.offloaded.modules() for name in module.__dict__ if "noria" in name]
    pair.check()


def test_remove_moves_to_the_device_that_is_asked_for(pair: Pair) -> None:
    noria.apply_group_offloading(pair.offloaded, pair.device, offload_type="leaf_level")
    pair.check(passes=1)
    noria.remove_group_offloading(pair.offloaded, pair.device)
    assert all(parameter.device.type == pair.device.type for parameter in pair.offloaded.parameters())
    pair.check()


def test_removing_to_what_is_no_device_changes_nothing(pair: Pair) -> None:
    handle = smallest(pair)
    for device in ("xyz", "cuda:7"):
        with pytest.raises((RuntimeError, ValueError)):
            handle.remove(device)
    assert handle.status().weights_bytes > 0
    pair.check()
    handle.remove()
    pair.check_state()


def test_leaving_the_context_removes(pair: Pair) -> None:
    with noria.offload(pair.offloaded, pair.device, budget="1MiB") as handle:
        pair.check(passes=1)
    with pytest.raises(noria.Error):
        handle.flush()
    assert all(parameter.device.type == "cpu" for parameter in pair.offloaded.parameters())
    pair.check_state()


def test_views_outlive_removing(pair: Pair) -> None:
    handle = smallest(pair)
    pair.check(passes=1, names=["all blocks"])
    view = pair.offloaded.blocks[2].up.weight.t()[1:3]
    handle.remove()
    assert_same_bits(view, pair.resident.blocks[2].up.weight.t()[1:3])


def test_a_removed_model_can_be_offloaded_again(pair: Pair) -> None:
    for _ in range(3):
        handle = smallest(pair)
        pair.check(passes=1)
        handle.remove()
    pair.check_state()


def test_resident_modules_stay_and_are_readable_by_address(pair: Pair) -> None:
    handle = noria.offload(pair.offloaded, pair.device, budget=16 * 1024, granularity="leaf")
    pair.check(passes=1)
    layer = pair.offloaded.blocks[1].up
    with handle.resident(layer):
        address = layer.weight.data_ptr()
        pair.check(passes=2)
        assert layer.weight.data_ptr() == address


def test_a_dropped_handle_changes_nothing_and_a_dropped_model_gives_its_memory_back(sim) -> None:
    before = torch.sim.memory_allocated()
    pair = Pair(SHAPES["T1"], torch.device("sim"))
    resident = torch.sim.memory_allocated() - before
    handle = noria.offload(pair.offloaded, pair.device, budget=8192, granularity="leaf")
    engine = weakref.ref(handle)
    assert torch.sim.memory_allocated() - before - resident == 8192
    del handle
    gc.collect()
    pair.check()
    pair.offloaded = None
    gc.collect()
    assert engine() is None
    assert torch.sim.memory_allocated() - before == resident


# --- Saving and copying -----------------------------------------------------------------------------------------------


def test_state_dict_is_on_the_cpu_and_two_of_them_share_memory(pair: Pair) -> None:
    smallest(pair)
    pair.check(passes=1)
    one, other = pair.offloaded.state_dict(), pair.offloaded.state_dict()
    for name, tensor in one.items():
        assert tensor.device.type == "cpu"
        assert tensor.data_ptr() == other[name].data_ptr(), name
    pair.check_state()


@pytest.mark.parametrize("shape", ["T1", "T7", "T8", "T9"])
@pytest.mark.parametrize("assign", [False, True], ids=["", "assign"])
def test_load_state_dict_changes_what_the_model_computes(device: torch.device, shape: str, assign: bool) -> None:
    pair = Pair(SHAPES[shape], device)
    smallest(pair)
    pair.check(passes=1)
    if shape == "T8" and not assign:
        pytest.skip("an eight-bit weight has no copy_")
    other = SHAPES[shape].build(7).state_dict()
    pair.offloaded.load_state_dict(copy.deepcopy(other), strict=True, assign=assign)
    pair.resident.load_state_dict(copy.deepcopy(other), strict=True, assign=assign)
    pair.resident.to(device)
    pair.check()
    pair.check_state()


COPIES: dict[str, Callable[[nn.Module], nn.Module]] = {
    "deepcopy": copy.deepcopy,
    "pickle": lambda model: pickle.loads(pickle.dumps(model)),
    "torch.save": lambda model: _save_and_load(model),
}


def _save_and_load(model: nn.Module) -> nn.Module:
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


@pytest.mark.parametrize("how", COPIES)
@pytest.mark.parametrize("shape", ["T1", "T3", "T7", "T9"])
def test_a_copy_is_an_ordinary_module_on_the_cpu(device: torch.device, shape: str, how: str) -> None:
    pair = Pair(SHAPES[shape], device)
    handle = smallest(pair)
    pair.check(passes=1)
    copied = COPIES[how](pair.offloaded)
    loads = handle.status().loads
    assert type(copied) is type(pair.offloaded)
    assert all(tensor.device.type == "cpu" for tensor in [*copied.parameters(), *copied.buffers()])
    for module in copied.modules():
        assert not module._forward_pre_hooks and not module._forward_hooks and not module._state_dict_hooks
        assert not [name for name in module.__dict__ if "noria" in name]
    for name, tensor in copied.state_dict().items():
        assert_same_bits(tensor, pair.resident.state_dict()[name], name)
    with torch.no_grad():
        for parameter in copied.parameters():
            parameter.zero_()
    assert handle.status().loads == loads
    if shape == "T7":
        assert copied.head.weight is copied.embedding.weight
        assert copied.again is copied.blocks[0]
    pair.check()


class CopiesItself(nn.Linear):
    """Says itself how it is copied and pickled."""

    def __deepcopy__(self, memo: dict[int, object]) -> CopiesItself:
        new = CopiesItself(self.in_features, self.out_features)
        new.load_state_dict(self.state_dict())
        new.copied_by = "itself"
        return new

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "pickled_by": "itself"}


@pytest.mark.parametrize("how", ["deepcopy", "pickle"])
def test_a_module_that_copies_itself_still_does(device: torch.device, how: str) -> None:
    model = nn.Sequential(CopiesItself(8, 8), nn.Linear(8, 8), CopiesItself(8, 8))
    model[2].weight = model[0].weight
    expected = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    noria.offload(model, device, budget=1536, granularity="leaf")
    copied = COPIES[how](model)
    attribute = {"deepcopy": "copied_by", "pickle": "pickled_by"}[how]
    assert getattr(copied[0], attribute) == "itself"
    for module in copied.modules():
        assert not [name for name in module.__dict__ if "noria" in name]
        assert not module._forward_pre_hooks
    for name, tensor in copied.state_dict().items():
        assert tensor.device.type == "cpu"
        assert_same_bits(tensor, expected[name], name)
    if how == "pickle":
        assert copied[0].weight is copied[2].weight


def test_a_copy_of_a_part_is_an_ordinary_module_too(pair: Pair) -> None:
    smallest(pair)
    block = copy.deepcopy(pair.offloaded.blocks[1])
    x = Inputs("cpu", 3).tensor(2, WIDTH)
    assert_same_bits(block(x), build().blocks[1](x))
    pair.check(passes=1)


# --- Moving and converting --------------------------------------------------------------------------------------------

CONVERSIONS: dict[str, Callable[[nn.Module], nn.Module]] = {
    "half": lambda model: model.half(),
    "double": lambda model: model.double(),
    "to(bfloat16)": lambda model: model.to(torch.bfloat16),
    "to(dtype=float16)": lambda model: model.to(dtype=torch.float16),
}


@pytest.mark.parametrize("how", CONVERSIONS)
def test_a_conversion_is_done_or_refused(pair: Pair, how: str) -> None:
    noria.offload(pair.offloaded, pair.device, budget=2 * pair.smallest_budget(granularity="leaf"), granularity="leaf")
    pair.check(passes=1)
    assert CONVERSIONS[how](pair.offloaded) is pair.offloaded
    CONVERSIONS[how](pair.resident)
    dtype = pair.resident.proj_in.weight.dtype
    assert {parameter.dtype for parameter in pair.offloaded.parameters()} == {dtype}
    for seed in range(3):
        x = Inputs(pair.device, seed).tensor(3, WIDTH).to(dtype)
        assert_same_bits(pair.offloaded(x), pair.resident(x))
    pair.check_state()


def test_a_conversion_that_needs_a_larger_budget_is_refused_and_changes_nothing(pair: Pair) -> None:
    smallest(pair)
    pair.check(passes=1)
    with pytest.raises(noria.BudgetError):
        pair.offloaded.double()
    pair.check()
    pair.check_state()


def test_a_memory_format_is_what_the_weights_have_then(device: torch.device) -> None:
    pair = Pair(SHAPES["T3"], device)
    smallest(pair)
    pair.check(passes=1)
    for model in (pair.offloaded, pair.resident):
        for part in pair.shape.parts(model).values():
            part.to(memory_format=torch.channels_last)
    kernels = [
        (actual, expected)
        for actual, expected in zip(pair.offloaded.parameters(), pair.resident.parameters(), strict=True)
        if expected.dim() == 4
    ]
    assert any(not expected.is_contiguous() for _, expected in kernels), "a shape with kernels that change"
    assert all(actual.stride() == expected.stride() for actual, expected in kernels)
    pair.check()
    pair.check_state()


def test_a_conversion_on_the_onload_device_never_brings_all_of_it_there(simulate) -> None:
    card = simulate(memory=2 << 20)
    model = nn.Sequential(*(nn.Linear(256, 256, bias=False) for _ in range(16)))  # 4 MiB
    handle = noria.offload(model, "sim", budget=1 << 20, granularity="leaf")
    model.to("sim", torch.float16)
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float16}
    assert handle.status().weights_bytes == 2 << 20
    assert card.stats()["peak_allocated"] <= 2 << 20


def test_to_the_onload_device_does_nothing(pair: Pair) -> None:
    handle = smallest(pair)
    pair.check(passes=1)
    before = handle.status()
    assert pair.offloaded.to(pair.device) is pair.offloaded
    after = handle.status()
    assert (after.loads, after.device_bytes) == (before.loads, before.device_bytes)
    pair.check()


def test_to_another_device_moves_the_model(sim) -> None:
    pair = Pair(SHAPES["T1"], torch.device("sim"))
    smallest(pair)
    pair.check(passes=1)
    pair.offloaded.to("cpu")
    assert {parameter.device.type for parameter in pair.offloaded.parameters()} == {"cpu"}
    assert_same_bits(call(pair.offloaded, torch.device("cpu")), call(build(), torch.device("cpu")))


def test_a_part_cannot_be_converted_by_itself(pair: Pair) -> None:
    smallest(pair)
    with pytest.raises(RuntimeError, match="remove"):
        pair.offloaded.blocks[0].half()
    pair.check()


def test_requires_grad_is_kept_and_can_be_changed(pair: Pair) -> None:
    pair.offloaded.proj_in.weight.requires_grad_(False)
    handle = smallest(pair)
    assert not pair.offloaded.proj_in.weight.requires_grad
    assert pair.offloaded.norm.weight.requires_grad
    pair.offloaded.requires_grad_(False)
    assert not any(parameter.requires_grad for parameter in pair.offloaded.parameters())
    pair.check()
    pair.offloaded.norm.requires_grad_(True)
    handle.remove()
    assert pair.offloaded.norm.weight.requires_grad
    assert not pair.offloaded.proj_in.weight.requires_grad


def test_parameters_say_the_onload_device(pair: Pair) -> None:
    handle = smallest(pair)
    devices = {tensor.device for tensor in [*pair.offloaded.parameters(), *pair.offloaded.buffers()]}
    assert devices == {handle.device}
    assert {parameter.device.type for parameter in pair.offloaded.parameters()} == {pair.device.type}


# --- Edits ------------------------------------------------------------------------------------------------------------

EDITS: dict[str, Callable[[nn.Module], Any]] = {
    "mul_": lambda model: model.blocks[1].up.weight.mul_(1.5),
    "slice": lambda model: model.blocks[1].up.weight[2:5].fill_(0.25),
    "item": lambda model: model.blocks[4].gain.__setitem__(3, 2.0),
    "copy_": lambda model: model.proj_out.bias.copy_(torch.arange(WIDTH, dtype=torch.float32)),
    "init": lambda model: nn.init.constant_(model.norm.weight, 0.5),
    "foreach": lambda model: torch._foreach_add_([model.blocks[0].gain, model.blocks[0].norm.bias], 1.0),
    "out": lambda model: torch.add(model.blocks[2].gain, 1.0, out=model.blocks[2].gain),
    "data": lambda model: model.blocks[2].gain.data.add_(1.0),
    "re-pointed data": lambda model: _repoint(model.blocks[2].down.weight),
    "new parameter": lambda model: model.blocks[2].register_parameter(
        "gain", nn.Parameter(torch.ones(WIDTH, device=model.proj_in.weight.device))
    ),
    "vector": lambda model: nn.utils.vector_to_parameters(
        torch.linspace(-1, 1, 2 * WIDTH, device=model.proj_in.weight.device), model.extra_norm.parameters()
    ),
}


def _repoint(parameter: nn.Parameter) -> None:
    parameter.data = torch.linspace(-1, 1, parameter.numel(), device=parameter.device).reshape(parameter.shape)


@pytest.mark.parametrize("how", EDITS)
def test_an_edit_between_calls_is_kept(pair: Pair, how: str) -> None:
    smallest(pair)
    pair.check(passes=2)
    with torch.no_grad():
        EDITS[how](pair.resident)
        EDITS[how](pair.offloaded)
    pair.check()
    pair.check_state()


@pytest.mark.parametrize("how", ["mul_", "slice", "data", "foreach"])
def test_an_edit_before_the_first_call_reaches_what_is_restored(pair: Pair, how: str) -> None:
    handle = smallest(pair)
    with torch.no_grad():
        EDITS[how](pair.resident)
        EDITS[how](pair.offloaded)
    handle.remove()
    pair.check_state()


@pytest.mark.parametrize("momentum", [0.1, None])
def test_running_statistics_of_every_norm_are_kept(device: torch.device, momentum: float | None) -> None:
    def norms(_seed: int) -> nn.Module:
        return nn.Sequential(
            nn.BatchNorm1d(4, momentum=momentum), nn.Conv1d(4, 4, 1),
            nn.InstanceNorm1d(4, affine=True, track_running_stats=True), nn.Conv1d(4, 4, 1),
            nn.BatchNorm1d(4, affine=False, momentum=momentum),
        )  # fmt: skip

    from shapes import Shape, forward, seeded

    pair = Pair(Shape("norms", seeded(norms), {"train": forward(3, 4, 5)}), device)
    smallest(pair)
    pair.check(passes=4)
    pair.check_state()
    pair.resident.eval()
    pair.offloaded.eval()
    pair.check(passes=2)


def test_flush_brings_edits_to_the_host(pair: Pair) -> None:
    handle = smallest(pair)
    state = pair.offloaded.state_dict()
    with torch.no_grad():
        pair.offloaded.proj_in.bias.fill_(3.0)
    handle.flush()
    assert state["proj_in.bias"].tolist() == [3.0] * WIDTH


def test_swapped_tensors_are_the_models_weights_from_then_on(pair: Pair) -> None:
    smallest(pair)
    pair.check(passes=2)
    for model in (pair.resident, pair.offloaded):
        new = nn.Parameter(torch.linspace(-1, 1, WIDTH * WIDTH).reshape(WIDTH, WIDTH).to(pair.device))
        torch.utils.swap_tensors(model.proj_in.weight, new)
    pair.check()
    pair.check_state()


def test_tied_weights_stay_tied(device: torch.device) -> None:
    pair = Pair(SHAPES["T7"], device)
    handle = smallest(pair)
    assert pair.offloaded.head.weight is pair.offloaded.embedding.weight
    pair.check(passes=2)
    with torch.no_grad():
        pair.offloaded.head.weight.mul_(2)
        pair.resident.head.weight.mul_(2)
    pair.check()
    handle.remove()
    assert pair.offloaded.head.weight is pair.offloaded.embedding.weight
    assert pair.offloaded.again is pair.offloaded.blocks[0]
    pair.check_state()


# --- Access -----------------------------------------------------------------------------------------------------------

RAW: dict[str, Callable[[torch.Tensor], Any]] = {
    "data_ptr": lambda weight: weight.data_ptr(),
    "a view's data_ptr": lambda weight: weight.t()[1:].data_ptr(),
    "untyped_storage": lambda weight: weight.untyped_storage().data_ptr(),
}


@pytest.mark.parametrize("how", [*RAW, "numpy", "dlpack"])
def test_raw_access_to_an_evicted_weight_names_it(pair: Pair, how: str) -> None:
    smallest(pair)
    pair.check(passes=1, names=["all blocks"])
    weight = pair.offloaded.blocks[2].up.weight.detach()
    ways = {**RAW, "numpy": lambda weight: weight.numpy(), "dlpack": torch.utils.dlpack.to_dlpack}
    if pair.device.type == "sim" and how in ("numpy", "dlpack"):
        pytest.skip("tensors of the device have no such access")
    with pytest.raises(RuntimeError) as raised:
        ways[how](weight)
    assert str(raised.value).startswith("EvictedWeightError: blocks.2.up.weight")
    assert noria.is_evicted_error(raised.value)
    pair.check(passes=1)


def test_values_read_through_any_operator_are_right(pair: Pair) -> None:
    smallest(pair)
    for (name, actual), expected in zip(
        pair.offloaded.named_parameters(), pair.resident.parameters(), strict=True
    ):  # each brings its group in, and another's out
        assert actual.sum().item() == expected.sum().item(), name
        assert (actual + 0).tolist() == expected.tolist(), name
        assert_same_bits(actual.cpu(), expected.cpu(), name)
    pair.check(passes=1)


@pytest.mark.parametrize("mode", [torch.inference_mode, torch.no_grad, torch.enable_grad])
def test_every_mode_gives_the_same_bits(pair: Pair, mode: type) -> None:
    with mode():
        smallest(pair)
        pair.check()
    pair.check()
    with torch.no_grad():
        pair.check(passes=1)
    with torch.inference_mode():
        pair.check(passes=1)


def test_gradients_are_right(pair: Pair) -> None:
    smallest(pair)
    for seed in range(3):
        for model in (pair.resident, pair.offloaded):
            call(model, pair.device, seed).square().sum().backward()
    for (name, actual), expected in zip(pair.offloaded.named_parameters(), pair.resident.parameters(), strict=True):
        assert actual.grad is not None, name
        assert_same_bits(actual.grad, expected.grad, name)


@pytest.mark.parametrize("verify", [False, True], ids=["", "verify"])
@pytest.mark.parametrize("slack", [0, 512, 1 << 20])
@pytest.mark.parametrize("count", [2, 4])
def test_threads_on_one_model_get_what_each_would_alone(pair: Pair, count: int, slack: int, verify: bool) -> None:
    """Also when the budget has room for one of them only: then one waits, and gives what it has to the other."""
    budget = pair.smallest_budget(granularity="leaf") + slack
    handle = noria.offload(pair.offloaded, pair.device, budget=budget, granularity="leaf", verify=verify)
    expected = [call(pair.resident, pair.device, seed) for seed in range(4 * count)]
    actual: dict[int, torch.Tensor] = {}
    failures: list[BaseException] = []
    together = threading.Barrier(count)

    def work(seeds: range) -> None:
        together.wait()
        for seed in seeds:
            try:
                actual[seed] = call(pair.offloaded, pair.device, seed)
            except BaseException as error:
                failures.append(error)

    threads = [threading.Thread(target=work, args=(range(start, 4 * count, count),)) for start in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    for seed, result in enumerate(expected):
        assert_same_bits(actual[seed], result, f"call {seed}")
    assert handle.status().peak_device_bytes <= budget
    pair.check()


# --- Inputs -----------------------------------------------------------------------------------------------------------


class Remembers(nn.Module):
    """Keeps what it was called with."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(WIDTH, WIDTH)
        self.seen: tuple[Any, ...] = ()

    def forward(self, x: torch.Tensor, cache: Any = None, **options: Any) -> torch.Tensor:
        self.seen = (x, cache, options)
        if isinstance(cache, list):
            cache.append(x)
        return self.inner(x)


@pytest.fixture
def remembering(sim) -> Remembers:
    model = Remembers()
    noria.apply_group_offloading(model, "sim", offload_type="leaf_level", exclude_kwargs=["stays"])
    return model


def test_inputs_are_moved_to_the_onload_device_at_the_root(remembering: Remembers) -> None:
    y = remembering(torch.ones(2, WIDTH), mask=torch.ones(2), stays=torch.ones(2), number=3)
    x, _, options = remembering.seen
    assert y.device.type == x.device.type == options["mask"].device.type == "sim"
    assert options["stays"].device.type == "cpu"
    assert options["number"] == 3


def test_inputs_are_moved_once(sim) -> None:
    model = nn.Sequential(*(nn.Sequential(nn.Linear(WIDTH, WIDTH)) for _ in range(4)))
    noria.apply_group_offloading(model, "sim", offload_type="leaf_level", use_stream=True)
    x = torch.ones(2, WIDTH)
    for _ in range(8):  # learned, measured, planned anew
        model(x)
        torch.sim.synchronize()
    before = sim.stats()["copies_h2d"]
    model(x)
    assert sim.stats()["copies_h2d"] - before == 4 + 1


def test_a_callers_list_stays_the_callers_list(remembering: Remembers) -> None:
    cache: list[Any] = []
    remembering(torch.ones(2, WIDTH), cache)
    assert remembering.seen[1] is cache
    assert len(cache) == 1
    remembering(torch.ones(2, WIDTH), cache=cache)
    assert len(cache) == 2


def test_tensors_inside_containers_are_moved(remembering: Remembers) -> None:
    nested = {"a": [torch.ones(2), (torch.ones(3), None, "text")]}
    remembering(torch.ones(2, WIDTH), nested)
    seen = remembering.seen[1]
    assert seen["a"][0].device.type == "sim"
    assert seen["a"][1][0].device.type == "sim"
    assert seen["a"][1][1:] == (None, "text")


# --- Diffusers' contract ----------------------------------------------------------------------------------------------


def test_the_first_twelve_parameters_are_diffusers() -> None:
    diffusers = pytest.importorskip("diffusers.hooks.group_offloading")
    theirs = list(inspect.signature(diffusers.apply_group_offloading).parameters.values())
    ours = list(inspect.signature(noria.apply_group_offloading).parameters.values())
    assert [parameter.name for parameter in ours[: len(theirs)]] == [parameter.name for parameter in theirs]
    assert len(theirs) == 12
    for one, other in zip(ours, theirs, strict=False):
        assert one.default == getattr(other.default, "value", other.default), one.name
        assert one.kind == other.kind
    assert all(parameter.kind is inspect.Parameter.KEYWORD_ONLY for parameter in ours[12:])


MISUSE = {
    "no group size": {"offload_type": "block_level"},
    "unknown type": {"offload_type": "layer_level", "num_blocks_per_group": 1},
    "record without stream": {"offload_type": "leaf_level", "record_stream": True},
}


@pytest.mark.parametrize("how", MISUSE)
def test_misuse_is_a_value_error_as_in_diffusers(sim, how: str) -> None:
    diffusers = pytest.importorskip("diffusers.hooks.group_offloading")
    messages = []
    for apply in (diffusers.apply_group_offloading, noria.apply_group_offloading):
        with pytest.raises(ValueError) as raised:
            apply(build(), "sim", **MISUSE[how])
        messages.append(str(raised.value))
    word = {"no group size": "num_blocks_per_group", "unknown type": "layer_level",
            "record without stream": "record_stream"}[how]  # fmt: skip
    assert all(word in message for message in messages)


def test_streams_on_a_device_without_streams_are_a_value_error(simulate) -> None:
    with pytest.raises(ValueError, match="streams"):
        noria.apply_group_offloading(build(), "cpu", offload_type="leaf_level", use_stream=True)
    simulate(streams=False)
    with pytest.raises(ValueError, match="streams"):
        noria.apply_group_offloading(build(), "sim", offload_type="leaf_level", use_stream=True)


@pytest.mark.parametrize("where", ["", "blocks.2.up"])
def test_modules_with_hooks_of_accelerate_are_refused(sim, where: str) -> None:
    accelerate = pytest.importorskip("accelerate")
    model = build()
    accelerate.cpu_offload(model.get_submodule(where), execution_device=torch.device("cpu"))
    with pytest.raises(ValueError, match=f"already offloaded by accelerate.*{where}"):
        noria.apply_group_offloading(model, "sim", offload_type="leaf_level")
    assert_same_bits(call(model, torch.device("cpu")), call(build(), torch.device("cpu")))


def test_modules_that_diffusers_offloads_are_refused(sim) -> None:
    diffusers = pytest.importorskip("diffusers.hooks.group_offloading")
    model = build()
    diffusers.apply_group_offloading(model, "sim", offload_type="leaf_level")
    with pytest.raises(ValueError, match="Diffusers"):
        noria.apply_group_offloading(model, "sim", offload_type="leaf_level")


def test_block_modules_makes_blocks_inside_blocks(sim) -> None:
    pair = Pair(SHAPES["T3"], torch.device("sim"))
    handle = noria.apply_group_offloading(
        pair.offloaded, "sim", offload_type="block_level", num_blocks_per_group=2, block_modules=["encoder", "decoder"]
    )
    names = {group["name"] for group in handle.status().groups}
    assert any(name.startswith("decoder.layers") for name in names)
    pair.check()
    with pytest.raises(ValueError, match="nowhere"):
        noria.apply_group_offloading(
            pair.offloaded, "sim", offload_type="block_level", num_blocks_per_group=2, block_modules=["nowhere"]
        )


def test_without_a_budget_the_device_holds_what_diffusers_would(sim) -> None:
    model = nn.Sequential(*(nn.Linear(64, 64, bias=False) for _ in range(6)))
    one = 64 * 64 * 4
    noria.apply_group_offloading(model, "sim", offload_type="leaf_level")
    assert torch.sim.memory_allocated() <= one
    noria.apply_group_offloading(model, "sim", offload_type="leaf_level", use_stream=True)
    assert torch.sim.memory_allocated() <= 2 * one
    noria.apply_group_offloading(model, "sim", num_blocks_per_group=2, use_stream=True)
    assert torch.sim.memory_allocated() <= 4 * one
    torch.sim.reset_peak_memory_stats()
    before = torch.sim.memory_allocated()
    with torch.no_grad():
        model(torch.ones(1, 64, device="sim"))
    assert torch.sim.max_memory_allocated() - before <= 3 * 512  # the input, and what one layer reads and writes
