#!/usr/bin/env bash
# Configures (once, and again when .venv changed) and builds one CMake preset: tools/build.sh dev [ninja targets]
set -euo pipefail
cd "$(dirname "$0")/.."
preset=$1
shift
export PATH="$PWD/.venv/bin:$PATH"
folder=build/$preset
# The compile commands name the environment's folder and torch's version.
wanted="$(readlink -f .venv) $(sha256sum < constraints.txt) $(sha256sum < CMakePresets.json)"
if [ ! -f "$folder/build.ninja" ] || [ "$(cat "$folder/noria-configured" 2>/dev/null)" != "$wanted" ]; then
  mkdir -p build
  log=build/configure-$preset.log
  cmake --preset "$preset" -DPython3_EXECUTABLE="$(readlink -f .venv)/bin/python" > "$log" 2>&1 || { cat "$log" >&2; exit 1; }
  printf '%s\n' "$wanted" > "$folder/noria-configured"
fi
if [ $# -gt 0 ]; then
  set -- --target "$@"
fi
cmake --build --preset "$preset" --parallel "${JOBS:-$(nproc)}" "$@"
