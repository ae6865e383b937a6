#!/bin/sh
# Makes .venv and installs what is locked into it, then the package itself: `setup.sh run` what the server needs (a Java
# runtime too), `setup.sh dev` the tests' and linters' tools as well.
# Uses uv if it is there, else python3 -m venv and pip. PYTHON names the interpreter to take. Quick when all is there already.
set -eu
cd "$(dirname "$0")/.."
kind=${1:-run}

say() { printf 'setup: %s\n' "$*" >&2; }
die() { say "$@"; exit 1; }
new_enough() { "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; }

find_python() {
  for candidate in "${PYTHON:-python3}" python3 python3.14 python3.13 python3.12 python3.11; do
    if command -v "$candidate" >/dev/null 2>&1 && new_enough "$candidate"; then
      echo "$candidate"
      return
    fi
  done
  die "Tidemill needs Python 3.11 or later, and found: $("${PYTHON:-python3}" --version 2>&1 || echo none)." \
    "Install one, or name it: make setup PYTHON=/path/to/python3"
}

if [ ! -x .venv/bin/python ] || ! new_enough .venv/bin/python; then
  python=$(find_python)
  say "making .venv with $("$python" --version)"
  if command -v uv >/dev/null 2>&1; then
    uv venv -q --clear --python "$(command -v "$python")" .venv
  else
    "$python" -m venv --clear .venv || die "python3 -m venv failed; on Debian and Ubuntu: apt-get install python3-venv"
  fi
fi

if command -v uv >/dev/null 2>&1; then
  install() { VIRTUAL_ENV=$PWD/.venv uv pip install -q "$@"; }
else
  [ -x .venv/bin/pip ] || .venv/bin/python -m ensurepip -q || die "no pip in .venv: install uv, or remove .venv and try again"
  install() { .venv/bin/python -m pip install -q --disable-pip-version-check "$@"; }
fi

say "installing lock/$kind.txt"
install --require-hashes -r "lock/$kind.txt"
install --no-deps -e .
say "done: .venv/bin/tidemill"
