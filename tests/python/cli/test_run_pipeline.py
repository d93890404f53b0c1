"""`noria run FOLDER` on a Diffusers pipeline and a transformers model that were written to disk in several shards."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from test_run import noria

pytest.importorskip("diffusers")


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    from diffusers import DDPMPipeline, DDPMScheduler, UNet2DModel

    torch.manual_seed(0)
    unet = UNet2DModel(
        sample_size=16,
        in_channels=3,
        out_channels=3,
        layers_per_block=1,
        block_out_channels=(32, 64),
        down_block_types=("DownBlock2D", "AttnDownBlock2D"),
        up_block_types=("AttnUpBlock2D", "UpBlock2D"),
        norm_num_groups=8,
    )
    path = tmp_path_factory.mktemp("pipeline")
    DDPMPipeline(unet, DDPMScheduler(num_train_timesteps=10)).save_pretrained(path, max_shard_size="500KB")
    return path


@pytest.mark.parametrize("device", ["cpu", "sim"])
def test_a_pipeline_runs_far_below_its_size(folder: Path, device: str, tmp_path: Path):
    picture, trace, image = tmp_path / "plot.png", tmp_path / "trace.json", tmp_path / "out.png"
    done = noria(
        "run", str(folder), "--device", device, "--budget", "800KiB", "--compare", "--json", "--steps", "2",
        "--plot", str(picture), "--trace", str(trace), "--output", str(image),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["equal_to_resident"] is True
    assert report["peak_device_bytes"] <= 800 * 1024 < report["weights_bytes"] / 3
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert image.read_bytes().startswith(b"\x89PNG")
    rows = {event["cat"] for event in json.loads(trace.read_text())["traceEvents"] if event["ph"] == "X"}
    assert {"compute"} <= rows


def test_on_the_cpu_the_weights_stay_in_their_files(folder: Path):
    from diffusers import DDPMPipeline

    import noria as package

    pipe = DDPMPipeline.from_pretrained(folder)
    handle = package.offload(pipe, "cpu", budget="800KiB", disk="checkpoint")
    status = handle.status()
    assert status.disk_bytes == sum(parameter.nbytes for parameter in pipe.unet.parameters())
    handle.remove()
