"""How `pip install --no-build-isolation .` builds noria: scikit-build-core, after a look at what it will need.

The extension must be built against the torch it will run beside, so torch comes from the environment that pip installs
into and is never a build requirement. The build's own tools (scikit-build-core, CMake, Ninja) may come from there too;
what is missing is fetched into a temporary folder, so that an environment with nothing but torch is enough.
"""

from __future__ import annotations

import atexit
import importlib
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from types import ModuleType
from typing import Any, NoReturn

# The oldest that the build was written for; the environment's own are used when they are there.
TOOLS = {"scikit_build_core": "scikit-build-core>=0.11", "cmake": "cmake>=3.25", "ninja": "ninja>=1.11"}


def stop(sentence: str) -> NoReturn:
    """Ends the build with one sentence: pip shows what a backend prints, and a traceback would bury it."""
    print(f"noria: {sentence}", file=sys.stderr)
    raise SystemExit(1)


def require_torch() -> None:
    if importlib.util.find_spec("torch") is None:
        stop(
            f"PyTorch is needed to build noria, and {sys.executable} has none: install it in the environment noria "
            "will run in (pip install torch), then run: pip install --no-build-isolation ."
        )


def missing_tools() -> list[str]:
    """Requirements of the build that this environment lacks; a program that runs is as good as a package."""
    return [tool for name, tool in TOOLS.items() if importlib.util.find_spec(name) is None and not runs(name)]


def runs(program: str) -> bool:
    path = shutil.which(program)
    return path is not None and subprocess.run([path, "--version"], check=False, capture_output=True).returncode == 0


def fetch(requirements: list[str]) -> None:
    folder = tempfile.mkdtemp(prefix="noria-build-tools-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--target", folder, *requirements]
    if subprocess.run(command, check=False).returncode != 0:
        stop(f"the build's tools could not be fetched; install them, then try again: {' '.join(TOOLS.values())}")
    sys.path.insert(0, folder)
    os.environ["PATH"] = os.path.join(folder, "bin") + os.pathsep + os.environ.get("PATH", "")
    os.environ["PYTHONPATH"] = folder + os.pathsep + os.environ.get("PYTHONPATH", "")
    importlib.invalidate_caches()


def scikit_build() -> ModuleType:
    require_torch()
    missing = missing_tools()
    if missing:
        fetch(missing)
    return importlib.import_module("scikit_build_core.build")


def build_wheel(wheel_directory: str, config_settings: Any = None, metadata_directory: str | None = None) -> str:
    return scikit_build().build_wheel(wheel_directory, config_settings, metadata_directory)


def build_editable(wheel_directory: str, config_settings: Any = None, metadata_directory: str | None = None) -> str:
    return scikit_build().build_editable(wheel_directory, config_settings, metadata_directory)


def prepare_metadata_for_build_wheel(metadata_directory: str, config_settings: Any = None) -> str:
    return scikit_build().prepare_metadata_for_build_wheel(metadata_directory, config_settings)


def prepare_metadata_for_build_editable(metadata_directory: str, config_settings: Any = None) -> str:
    return scikit_build().prepare_metadata_for_build_editable(metadata_directory, config_settings)


def build_sdist(sdist_directory: str, config_settings: Any = None) -> str:
    # No compiler runs here, so torch is not needed; the tools may still have to come.
    missing = missing_tools()
    if missing:
        fetch(missing)
    return importlib.import_module("scikit_build_core.build").build_sdist(sdist_directory, config_settings)
