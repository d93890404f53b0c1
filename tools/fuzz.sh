#!/usr/bin/env bash
# Builds the fuzz targets and runs each one. What they found interesting is kept in build/fuzz-corpus for the next time.
#
# FUZZ_SECONDS: how long each runs (60). FUZZ_RUNS: how many inputs each tries, in place of a time.
# A finding is written to build/fuzz-findings and makes the exit status 1.
set -euo pipefail
cd "$(dirname "$0")/.."
tools/build.sh fuzz fuzzers
limit="-max_total_time=${FUZZ_SECONDS:-60}"
if [ -n "${FUZZ_RUNS:-}" ]; then
  limit="-runs=$FUZZ_RUNS"
fi
mkdir -p build/fuzz-findings
failed=0
for target in build/fuzz/fuzz/*; do
  [ -x "$target" ] || { echo "no fuzz target was built" >&2; exit 1; }
  name=$(basename "$target")
  mkdir -p "build/fuzz-corpus/$name"
  folders=("build/fuzz-corpus/$name")
  if [ -d "tests/corpus/$name" ]; then
    folders+=("tests/corpus/$name")
  fi
  options=()
  if [ -f "tests/corpus/$name.dict" ]; then
    options+=("-dict=tests/corpus/$name.dict")
  fi
  echo "== $name"
  "$target" "$limit" -timeout=10 -rss_limit_mb=1024 -print_final_stats=1 -verbosity=0 \
    -artifact_prefix="build/fuzz-findings/$name-" "${options[@]}" "${folders[@]}" < /dev/null || failed=1
done
exit $failed
