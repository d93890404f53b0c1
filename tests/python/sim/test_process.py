"""Processes that fork, or end at an odd moment, while the simulator is on."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest

START = "import os, sys, torch, noria, noria.sim\nnoria.sim.enable()\n"


def status_and_output(script: str) -> tuple[int, str]:
    """Exit status of an interpreter of its own, negative for a signal, and what it wrote."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", START + textwrap.dedent(script)],
        check=False,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    return done.returncode, done.stdout.strip()


@pytest.mark.parametrize(
    "use",
    [
        "x + 1",
        "x.cpu()",
        "torch.zeros(2).to('sim')",
        "torch.empty(2, device='sim')",
        "torch.sim.Stream()",
        "torch.sim.synchronize()",
        "torch.sim.memory_allocated()",
        "noria.sim.enable()",
        "noria.sim.enable('l20').clock()",
    ],
)
def test_a_forked_child_that_uses_the_device_is_told_what_to_do(use: str) -> None:
    status, printed = status_and_output(
        f"""
        x = torch.ones(3, device="sim")
        child = os.fork()
        if child == 0:
            try:
                {use}
            except RuntimeError as error:
                print(str(error).splitlines()[0])
                sys.exit(7)
            os._exit(1)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        print((x + 1).sum().item())
        sys.exit(status)
        """
    )
    message, total = printed.splitlines()
    assert status == 7
    assert "forked child" in message
    assert "'spawn'" in message
    assert total == "6.0"


def test_a_forked_child_lets_go_of_what_it_inherited_while_threads_are_at_work() -> None:
    status, printed = status_and_output(
        """
        import threading
        running = True
        def work():
            x = torch.ones(100, device="sim")
            while running:
                x = x + 1
        threads = [threading.Thread(target=work) for _ in range(2)]
        [thread.start() for thread in threads]
        x, pinned, event = torch.ones(3, device="sim"), torch.ones(3).pin_memory(), torch.sim.Event()
        event.record()
        for _ in range(10):
            child = os.fork()
            if child == 0:
                del x, pinned, event
                os._exit(7)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        running = False
        [thread.join() for thread in threads]
        print(x.sum().item())
        """
    )
    assert (status, printed) == (0, "3.0")


def test_a_forked_worker_works_on_the_cpu() -> None:
    status, printed = status_and_output(
        """
        from torch.utils.data import DataLoader, TensorDataset
        data = TensorDataset(torch.arange(8.0))
        loader = DataLoader(data, batch_size=4, num_workers=2, multiprocessing_context="fork")
        print([batch.to("sim").sum().item() for (batch,) in loader])
        """
    )
    assert (status, printed) == (0, "[6.0, 22.0]")


@pytest.mark.parametrize(
    ("end", "status", "output"),
    [
        ("sys.exit(3)", 3, ""),
        ("os._exit(5)", 5, ""),
        ("import atexit; atexit.register(lambda: print((x + 1).sum().item()))", 0, "6.0"),
        ("sys.modules['kept'] = (x, torch.ones(3).pin_memory(), torch.sim.Event(), torch.sim.Stream())", 0, ""),
        ("import threading\nthreading.Thread(target=lambda: (threading.main_thread().join(), print(x.sum().item())))"
         ".start()", 0, "3.0"),
    ],
    ids=["exit", "at once", "atexit", "kept in modules", "thread that outlives main"],
)  # fmt: skip
def test_a_process_may_end_at_any_moment(end: str, status: int, output: str) -> None:
    begin = 'x = torch.ones(3, device="sim", requires_grad=True)\n(x * 2).sum().backward()\nx = x.detach()\n'
    assert status_and_output(begin + end) == (status, output)


def test_an_exception_or_an_interrupt_in_the_middle_ends_with_its_own_status() -> None:
    status, printed = status_and_output(
        """
        with torch.sim.stream(torch.sim.Stream()):
            x = torch.ones(3, device="sim", requires_grad=True)
            (x * 2).sum().backward()
            raise ValueError("in the middle")
        """
    )
    assert status == 1
    assert printed.endswith("ValueError: in the middle")
    # With its handler set: a shell starts background jobs with the signal ignored.
    status, printed = status_and_output(
        """
        import signal
        signal.signal(signal.SIGINT, signal.default_int_handler)
        os.kill(os.getpid(), signal.SIGINT)
        torch.ones(1, device="sim")
        """
    )
    assert status == -2
    assert printed.endswith("KeyboardInterrupt")
