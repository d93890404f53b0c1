"""Random numbers on the device are those of the CPU from the same seed, and only the device's own."""

from __future__ import annotations

import pytest
import torch


def test_a_seed_gives_the_cpus_numbers(sim) -> None:
    for draw in (
        lambda device: torch.randn(7, device=device),
        lambda device: torch.rand(3, 3, device=device),
        lambda device: torch.randint(0, 100, (5,), device=device),
        lambda device: torch.randperm(10, device=device),
        lambda device: torch.bernoulli(torch.full((20,), 0.5, device=device)),
        lambda device: torch.nn.functional.dropout(torch.ones(20, device=device), 0.5),
        lambda device: torch.multinomial(torch.ones(5, device=device), 3),
    ):
        torch.manual_seed(3)
        on_sim = draw("sim")
        torch.manual_seed(3)
        assert torch.equal(on_sim.cpu(), draw("cpu"))


def test_state_can_be_kept_and_put_back(simulate) -> None:
    simulate(devices=2)
    state = torch.sim.get_rng_state("sim:1")
    first = torch.randn(4, device="sim:1")
    torch.randn(4, device="sim:0")
    torch.sim.set_rng_state(state, "sim:1")
    assert torch.equal(torch.randn(4, device="sim:1"), first)


def test_drawing_on_the_device_leaves_the_cpus_generator(sim) -> None:
    before = torch.get_rng_state()
    torch.randn(10, device="sim")
    torch.nn.functional.dropout(torch.ones(10, device="sim"), 0.5)
    assert torch.equal(torch.get_rng_state(), before)


def test_own_generators_draw_their_own_numbers(sim) -> None:
    a, b = (torch.Generator(device="sim").manual_seed(5) for _ in range(2))
    assert torch.equal(torch.randn(4, generator=a, device="sim"), torch.randn(4, generator=b, device="sim"))
    assert a.device == torch.device("sim", 0)


def test_a_cpu_generator_is_refused(sim) -> None:
    with pytest.raises(RuntimeError, match="Expected a 'sim' device type for generator but found 'cpu'"):
        torch.randn(4, generator=torch.Generator(), device="sim")


def test_checkpointed_dropout_is_the_same_in_the_recomputation(sim) -> None:
    from torch.utils.checkpoint import checkpoint

    x = torch.ones(1000, device="sim", requires_grad=True)
    y = checkpoint(lambda t: torch.nn.functional.dropout(t * 2, 0.5), x, use_reentrant=False)
    y.sum().backward()
    assert torch.equal(x.grad, y.detach())
