"""A forked child has none of the threads that bring weights: what it does with an offloaded model is refused."""

from __future__ import annotations

import pytest

SCRIPT = """
import os, sys, tempfile, threading
import torch
from torch import nn
import noria

torch.manual_seed(0)
torch.set_num_threads(1)
model = nn.Sequential(*(nn.Linear(32, 32) for _ in range(6)))
x = torch.ones(2, 32)
expected = model(x)
disk = {disk}
handle = noria.offload(model, "cpu", budget=3 * 4608, granularity="leaf", disk=disk)
assert torch.equal(model(x), expected)

def refused(what):
    try:
        what()
    except RuntimeError as error:
        assert "fork" in str(error) and "spawn" in str(error), error
        return "refused"
    return "did not raise"

child = os.fork()
if child == 0:
    answers = [refused(lambda: model(x)), refused(lambda: model[3].weight.sum()), refused(handle.status),
               refused(handle.remove), refused(lambda: handle.resident(model[0]).__enter__())]
    mine = nn.Linear(4, 4)
    own = noria.offload(mine, "cpu", budget="1MiB")
    answers.append(str(torch.equal(mine(torch.ones(4)), mine(torch.ones(4))) and own.status().loads > 0))
    print(*answers, sep=",", flush=True)
    del model, handle
    sys.exit(7)  # an ordinary exit: what the child inherited dies with it
_, status = os.waitpid(child, 0)
assert os.waitstatus_to_exitcode(status) == 7, status
assert torch.equal(model(x), expected)
print("the parent goes on")
"""


@pytest.mark.parametrize("disk", ["None", "tempfile.mkdtemp()"], ids=["memory", "disk"])
def test_a_forked_child_is_refused_and_ends_well(fresh_python, disk: str) -> None:
    lines = fresh_python(SCRIPT.format(disk=disk)).splitlines()
    assert lines == [",".join(["refused"] * 5 + ["True"]), "the parent goes on"]
