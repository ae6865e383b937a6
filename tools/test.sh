#!/bin/sh
# The tests of `make test` as two runs beside each other: `test.sh FAST REST [pytest's arguments]`, two expressions of
# markers. Those that need neither Spark nor a server keep one core busy; the others mostly wait for what they started.
# What the first run says is shown when the second is done. The status is 0 when both went well.
#
# Tests over real brokers, browsers and servers that fail, few of them, get a second try in new processes: a machine may
# have been too busy. What passes only then is named at the end, and is a bug all the same: of the test or of the product.
set -u
cd "$(dirname "$0")/.."
# Sets come in the same order each time: what is said here depends on the code alone.
export PYTHONHASHSEED=0
# More than this are no accident.
few=3
fast=$1 rest=$2
shift 2
said=$(mktemp)
# Each run remembers its own failures.
failures=.pytest_cache/rest/v/cache/lastfailed
rm -f "$failures"
.venv/bin/pytest -m "$fast" "$@" >"$said" 2>&1 &
beside=$!
# A shell's background jobs do not hear Ctrl-C.
trap 'kill "$beside" 2>/dev/null; rm -f "$said"' EXIT
trap 'exit 130' INT TERM
.venv/bin/pytest -m "$rest" -o cache_dir=.pytest_cache/rest "$@"
second=$?
wait "$beside"
first=$?
cat "$said"
shaky=
if [ "$second" -eq 1 ] && [ -e "$failures" ] && [ "$(grep -c ': true' "$failures")" -le "$few" ]; then
  shaky=$(sed -n 's/^ *"\(.*\)": true.*/  \1/p' "$failures")
  .venv/bin/pytest -m "$rest" -o cache_dir=.pytest_cache/rest --last-failed "$@"
  second=$?
fi
# 5: no test was chosen, which is no failure as long as the other run had some.
[ "$first$second" != 55 ] || exit 5
[ "$first" -eq 0 ] || [ "$first" -eq 5 ] || exit "$first"
[ "$second" -eq 0 ] || [ "$second" -eq 5 ] || exit "$second"
[ -z "$shaky" ] || printf 'PASSED ONLY AT THE SECOND TRY, to be looked into:\n%s\n' "$shaky"
