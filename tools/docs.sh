#!/bin/sh
# Builds the site of the documentation into .cache/site, in an environment of its own (.cache/docs-venv), which lock/docs.txt fills. Warnings
# are errors: a page outside of the navigation, a link that leads nowhere.
set -eu
cd "$(dirname "$0")/.."
venv=.cache/docs-venv
if ! cmp -s lock/docs.txt "$venv/.installed"; then
  mkdir -p .cache
  if command -v uv >/dev/null 2>&1; then
    uv venv -q --clear --python "${PYTHON:-python3}" "$venv"
    VIRTUAL_ENV=$PWD/$venv uv pip install -q --require-hashes -r lock/docs.txt
  else
    "${PYTHON:-python3}" -m venv --clear "$venv"
    "$venv/bin/python" -m pip install -q --disable-pip-version-check --require-hashes -r lock/docs.txt
  fi
  cp lock/docs.txt "$venv/.installed"
fi
"$venv/bin/sphinx-build" -q -W --keep-going -b html -c docs/site -d .cache/site-pages . .cache/site
echo "docs: .cache/site/index.html"
