"""`pip install --no-build-isolation .`: what is installed works, and without torch it ends in one sentence."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest

import noria

ROOT = Path(__file__).resolve().parents[2]


def environment_without_source_tree() -> dict[str, str]:
    return {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}


def test_building_without_torch_ends_in_one_sentence_that_says_what_to_do() -> None:
    script = "import sys; sys.path.insert(0, 'tools'); import build_backend; build_backend.build_wheel('unused')"
    # -I -S: an interpreter with the standard library and nothing else.
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", script], cwd=ROOT, check=False, capture_output=True, text=True
    )
    assert done.returncode == 1
    assert len(done.stderr.splitlines()) == 1
    assert "PyTorch is needed to build noria" in done.stderr
    assert "pip install --no-build-isolation ." in done.stderr


@pytest.mark.long
def test_what_pip_installs_works_away_from_the_source_tree(tmp_path: Path) -> None:
    venv.create(tmp_path / "venv", with_pip=True, symlinks=True)
    python = tmp_path / "venv" / "bin" / "python"
    site = subprocess.run(
        [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"],
        check=True,
        capture_output=True,
        text=True,
    ).stdout.strip()
    # torch and the build's tools come from the environment that runs this test, noria from what pip builds.
    (Path(site) / "borrowed.pth").write_text(sysconfig.get_path("purelib") + "\n")
    install = [python, "-m", "pip", "install", "--no-build-isolation", "--no-deps", "."]
    done = subprocess.run(
        install, cwd=ROOT, env=environment_without_source_tree(), check=False, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr

    script = "import noria, noria._C; print(noria.__version__, noria.__file__, noria._C.__file__, sep='\\n')"
    said = subprocess.run(
        [python, "-c", script],
        cwd=tmp_path,
        env=environment_without_source_tree(),
        check=True,
        capture_output=True,
        text=True,
    ).stdout.splitlines()
    assert said[0] == noria.__version__
    assert all(path.startswith(site) for path in said[1:])
    assert not [path for path in (Path(site) / "noria").rglob("*") if path.suffix in {".h", ".cpp", ".a"}]


@pytest.mark.long
def test_pip_says_the_sentence_when_torch_is_missing(tmp_path: Path) -> None:
    venv.create(tmp_path / "venv", with_pip=True, symlinks=True)
    install = [tmp_path / "venv" / "bin" / "python", "-m", "pip", "install", "--no-build-isolation", "."]
    done = subprocess.run(
        install, cwd=ROOT, env=environment_without_source_tree(), check=False, capture_output=True, text=True
    )
    assert done.returncode != 0
    assert "PyTorch is needed to build noria" in done.stderr
    assert "Traceback" not in done.stderr
