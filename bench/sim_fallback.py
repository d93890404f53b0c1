"""What does an operator of the simulated device cost over the same operator on the CPU, and what does the checker add?

Each operator works on tensors so small that arithmetic costs nothing; best of several rounds, both sides in one run.
Targets: at most 8 us per operator over the CPU's, and the checker at most doubles that.

    python bench/sim_fallback.py [--json]
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import time
from collections.abc import Callable

import torch

import noria.sim

CALLS, ROUNDS = 2000, 7
TARGET_MICROSECONDS = 8.0

OPERATORS: dict[str, Callable[[torch.Tensor, torch.Tensor], object]] = {
    "add (functional)": lambda a, b: a + b,
    "add_ (in place)": lambda a, b: a.add_(b),
    "mul out=": lambda a, b: torch.mul(a, b, out=a),
    "mm": lambda a, b: torch.mm(a, b),
    "softmax": lambda a, b: torch.softmax(a, -1),
    "layer_norm": lambda a, b: torch.nn.functional.layer_norm(a, (8,)),
    "index_select": lambda a, b: torch.index_select(a, 0, INDEX[a.device.type]),
    "cat": lambda a, b: torch.cat([a, b]),
    "transpose (view)": lambda a, b: a.t(),
}
INDEX: dict[str, torch.Tensor] = {}


def microseconds(call: Callable[[], object]) -> float:
    """Microseconds per call, the best round."""
    best = float("inf")
    for _ in range(ROUNDS):
        began = time.perf_counter()
        for _ in range(CALLS):
            call()
        best = min(best, (time.perf_counter() - began) / CALLS)
    return best * 1e6


def measure() -> list[dict[str, float | str]]:
    """One row per operator."""
    torch.set_num_threads(1)
    rows: dict[str, dict[str, float | str]] = {name: {"operator": name} for name in OPERATORS}
    for checker in ("off", "raise"):
        noria.sim.enable(checker=checker)
        for device in ("cpu", "sim"):
            a, b = torch.ones(8, 8, device=device), torch.ones(8, 8, device=device)
            INDEX[device] = torch.zeros(8, dtype=torch.int64, device=device)
            with torch.no_grad():
                for name, operator in OPERATORS.items():
                    a.fill_(1.0)
                    column = "cpu_us" if device == "cpu" else f"sim_{checker}_us"
                    rows[name][column] = microseconds(lambda call=operator, x=a, y=b: call(x, y))
            del a, b
        INDEX.clear()
    for row in rows.values():
        row["fallback_us"] = row["sim_off_us"] - row["cpu_us"]
        row["checker_us"] = row["sim_raise_us"] - row["sim_off_us"]
    return list(rows.values())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    as_json = parser.parse_args().json
    rows = measure()
    machine = platform.processor() or platform.machine()
    if as_json:
        print(json.dumps({"machine": machine, "torch": torch.__version__, "rows": rows}))
        return
    print(f"microseconds per operator on {machine}, torch {torch.__version__}")
    print(f"{'operator':<20}{'cpu':>8}{'fallback':>10}{'checker':>10}")
    for row in rows:
        print(f"{row['operator']:<20}{row['cpu_us']:8.2f}{row['fallback_us']:10.2f}{row['checker_us']:10.2f}")
    kernels = [row for row in rows if row["operator"] != "transpose (view)"]
    median = statistics.median(row["fallback_us"] for row in kernels)
    print(f"median fallback {median:.2f} (target {TARGET_MICROSECONDS})")


if __name__ == "__main__":
    main()
