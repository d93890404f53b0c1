"""`cmake --install` gives a package that a C++ project outside the tree builds against and runs without Python."""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = ("transformer", "torchscript", "weights")
# What a program finds on a machine that has no Python: no interpreter on the path and none of its variables.
WITHOUT_PYTHON = {"PATH": "/nonexistent"}


def run(command: list[str | Path], **options: object) -> str:
    """Runs to the end and returns what was printed; a failure shows it."""
    done = subprocess.run(
        [str(word) for word in command], check=False, capture_output=True, text=True, cwd="/", **options
    )  # type: ignore[call-overload]
    assert done.returncode == 0, done.stdout + done.stderr
    return str(done.stdout)


def build(folder: Path) -> None:
    """Installs the package, copies the consumer out of the tree and builds it there, and exports what it reads."""
    environment = dict(os.environ)
    if (ccache := shutil.which("ccache")) is not None:
        environment |= {
            "CMAKE_CXX_COMPILER_LAUNCHER": ccache,
            "CCACHE_BASEDIR": str(folder),
            "CCACHE_NOHASHDIR": "1",
        }
    run(["cmake", "--install", ROOT / "build" / "dev", "--prefix", folder / "prefix"])
    shutil.copytree(ROOT / "examples" / "cpp", folder / "source")
    configure = ["cmake", "-G", "Ninja", "-S", folder / "source", "-B", folder / "build", "-DCMAKE_BUILD_TYPE=Release"]
    run([*configure, f"-DCMAKE_PREFIX_PATH={folder / 'prefix'}"], env=environment)
    run(["cmake", "--build", folder / "build"], env=environment)
    run([ROOT / ".venv" / "bin" / "python", folder / "source" / "export.py", folder / "data"], env=environment)


@pytest.fixture(scope="module")
def consumer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder with the built consumer; one for all workers of this run."""
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "consumer"
    folder.mkdir(exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "built").exists():
            build(folder)
            (folder / "built").touch()
    yield folder


def figures(text: str) -> dict[str, str]:
    """The pairs that an example prints."""
    return dict(re.findall(r"(\w+) (\w+)", text))


@pytest.mark.parametrize("device", ["cpu", "sim"])
def test_a_cpp_transformer_runs_from_disk_under_a_quarter_of_its_weights(
    consumer: Path, device: str, tmp_path: Path
) -> None:
    timeline = tmp_path / "timeline.json"
    said = figures(
        run(
            [consumer / "build" / "transformer", consumer / "data" / "transformer.safetensors", device, timeline],
            env=WITHOUT_PYTHON,
        )
    )
    assert said["equal"] == "yes"
    assert int(said["weights"]) == int(said["disk"]) == 4 * int(said["budget"])
    assert 0 < int(said["peak"]) <= int(said["budget"])
    slices = [event for event in json.loads(timeline.read_text())["traceEvents"] if event["ph"] == "X"]
    # On the cpu a file is read straight to where it is used: nothing is copied.
    assert {event["cat"] for event in slices} == ({"compute"} if device == "cpu" else {"compute", "copy in"})
    assert any(event["name"].startswith("blocks.7") for event in slices)


@pytest.mark.parametrize("device", ["cpu", "sim"])
def test_a_script_from_python_runs_under_a_quarter_of_its_weights(consumer: Path, device: str) -> None:
    said = figures(
        run([consumer / "build" / "torchscript", consumer / "data" / "script.pt", device], env=WITHOUT_PYTHON)
    )
    assert said["equal"] == "yes"
    assert 0 < int(said["peak"]) <= int(said["budget"]) == int(said["weights"]) // 4


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_cpp_program_loads_nothing_of_python(consumer: Path, program: str) -> None:
    loaded = run(["ldd", consumer / "build" / program])
    assert "libnoria_core" in loaded
    assert "not found" not in loaded
    assert "python" not in re.sub(r"/\S*", lambda path: Path(path[0]).name, loaded)


def test_a_program_on_the_core_alone_loads_no_pytorch(consumer: Path) -> None:
    assert "libtorch" not in run(["ldd", consumer / "build" / "weights"])
    said = run([consumer / "build" / "weights", consumer / "data" / "transformer.safetensors"], env=WITHOUT_PYTHON)
    assert said == "F32: 24.6 MiB\n"


def test_the_core_is_found_without_looking_for_pytorch(consumer: Path, tmp_path: Path) -> None:
    (tmp_path / "CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.25)\n"
        "project(core LANGUAGES CXX)\n"
        "find_package(noria REQUIRED COMPONENTS core)\n"
        "if(TARGET torch::torch OR TARGET noria::noria OR NOT TARGET noria::core)\n"
        "  message(FATAL_ERROR wrong)\n"
        "endif()\n"
    )
    run(["cmake", "-S", tmp_path, "-B", tmp_path / "build", f"-DCMAKE_PREFIX_PATH={consumer / 'prefix'}"])


def test_a_wrong_use_ends_in_one_line_and_not_in_an_abort(consumer: Path, tmp_path: Path) -> None:
    program = consumer / "build" / "transformer"
    done = subprocess.run(
        [program, tmp_path / "nothing", "cpu", tmp_path / "t.json"],
        check=False,
        capture_output=True,
        text=True,
        env=WITHOUT_PYTHON,
    )
    assert done.returncode == 1
    assert len(done.stderr.splitlines()) == 1
    assert "nothing" in done.stderr


def test_the_readme_program_stays_within_its_budget(consumer: Path) -> None:
    program = ROOT / "build" / "dev" / "examples" / "budget"
    said = run([program, consumer / "data" / "script.pt", "cpu", "512KiB"])
    peak, weights = map(int, re.findall(r"(\d+) bytes at most, of (\d+)", said)[0])
    assert 0 < peak <= 512 << 10 < weights


def test_the_code_in_the_documentation_is_that_of_the_examples() -> None:
    sources = "".join(path.read_text() for path in (ROOT / "examples" / "cpp").iterdir() if path.is_file())
    page = (ROOT / "docs" / "cpp.md").read_text()
    blocks = re.findall(r"^```(?:cpp|cmake)\n(.*?)^```", page, flags=re.MULTILINE | re.DOTALL)
    assert len(blocks) >= 7
    assert [block for block in blocks if block not in sources] == []
