#!/usr/bin/env bash
# Runs every Google Benchmark of bench/, compiled as users get the library, and keeps the JSON in build/bench-results.
# Arguments go to each benchmark: tools/bench.sh --benchmark_filter=Copy
set -euo pipefail
cd "$(dirname "$0")/.."
tools/build.sh bench
mkdir -p build/bench-results
shopt -s nullglob
programs=(build/bench/bench/*)
if [ ${#programs[@]} -eq 0 ]; then
  echo "bench/ has no benchmark yet" >&2
  exit 1
fi
for program in "${programs[@]}"; do
  name=$(basename "$program")
  echo "== $name"
  "$program" --benchmark_out="build/bench-results/$name.json" --benchmark_out_format=json "$@" < /dev/null
done
