#!/bin/sh
# Rewrites the lock files from pyproject.toml. They pin every package with its hashes and name no registry, so that
# pip and uv both install from them: run.txt (the server), dev.txt (and the tests' tools), docs.txt
# (the site of the documentation alone).
set -eu
cd "$(dirname "$0")/.."
compile() { uv pip compile --universal --python-version 3.11 --generate-hashes --no-annotate --no-header --no-emit-index-url --no-emit-find-links -q "$@"; }
compile pyproject.toml -o lock/run.txt
compile pyproject.toml --group dev -c lock/run.txt -o lock/dev.txt
compile --group docs -o lock/docs.txt
