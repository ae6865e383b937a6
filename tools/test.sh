#!/bin/sh
# The tests of `make test` as runs beside each other:
#   test.sh EXPRESSION... [--once EXPRESSION...] [-- pytest's arguments]
# First the linters, and beside them the archive of classes with which Spark's many starts take half the time.
# Each expression of markers is one run. Tests often wait for the processes that they started, so that two cores are
# enough for five runs. The output of the first run is shown at once, that of the others when all are done. The status
# is 0 when all passed.
#
# A test over real brokers, browsers and servers may fail because the machine was too busy: if few fail, they get a second
# try in new processes. What passes only then is listed at the end, and is a bug all the same. The runs after `--once` use
# no such parts, and get no second try: a property that fails once has found something.
set -u
cd "$(dirname "$0")/.."
# Sets come in the same order each time: the result depends on the code alone.
export PYTHONHASHSEED=0
# Hundreds of processes start: where this is set, as containers like to do, each compiles all modules, half of its start.
unset PYTHONDONTWRITEBYTECODE
# More failures than this are no accident.
few=3
# The slowest tests, of all runs together, that are listed at the end.
slowest=10
# Each run has a folder: pytest's record of its failures, its output, its expression and its status.
lanes=.pytest_cache/lanes
rm -rf "$lanes"
lane=0
once=
while [ $# -gt 0 ] && [ "$1" != -- ]; do
  if [ "$1" = --once ]; then
    once=1
  else
    lane=$((lane + 1))
    mkdir -p "$lanes/$lane"
    printf '%s' "$1" >"$lanes/$lane/expression"
    [ -z "$once" ] || touch "$lanes/$lane/once"
  fi
  shift
done
[ $# -eq 0 ] || shift
shaky=

# Only the first of Java's compilers, as in the tests: the archive does not depend on it.
JDK_JAVA_OPTIONS=-XX:TieredStopAtLevel=1 .venv/bin/tidemill prepare >"$lanes/prepare" 2>&1 &
preparing=$!
# A shell's background jobs do not hear Ctrl-C.
beside=$preparing
trap 'kill $beside 2>/dev/null' EXIT
trap 'exit 130' INT TERM
make lint || exit
wait "$preparing" || { cat "$lanes/prepare"; exit 1; }
beside=

run() { # LANE [pytest's arguments]: its status is kept
  at=$lanes/$1
  shift
  .venv/bin/pytest -m "$(cat "$at/expression")" -o cache_dir="$at" --durations=$slowest --durations-min=1 "$@"
  echo $? >"$at/status"
}

again() { # LANE [pytest's arguments]: a second try of what failed, if that is little
  at=$lanes/$1
  failures=$at/v/cache/lastfailed
  if [ -e "$at/once" ] || [ "$(cat "$at/status")" -ne 1 ] || [ ! -e "$failures" ] ||
    [ "$(grep -c ': true' "$failures")" -gt "$few" ]; then
    return
  fi
  shaky="$shaky$(sed -n 's/^ *"\(.*\)": true.*/  \1/p' "$failures")
"
  lane=$1
  shift
  run "$lane" --last-failed "$@"
}

for at in "$lanes"/[0-9]*; do
  lane=${at##*/}
  [ "$lanes/1" != "$at" ] || continue
  run "$lane" "$@" >"$at/output" 2>&1 &
  beside="$beside $!"
done
run 1 "$@" | tee "$lanes/1/output"
wait
for at in "$lanes"/[0-9]*; do
  [ "$lanes/1" = "$at" ] || cat "$at/output"
done
for at in "$lanes"/[0-9]*; do
  again "${at##*/}" "$@"
done
# 5: no test was chosen, which is no failure as long as another run had some.
worst=5
for at in "$lanes"/[0-9]*; do
  status=$(cat "$at/status")
  [ "$status" -eq 0 ] || [ "$status" -eq 5 ] || exit "$status"
  [ "$status" -eq 5 ] || worst=0
done
echo "The $slowest slowest:"
cat "$lanes"/*/output | grep -E '^ *[0-9.]+s (call|setup|teardown) ' | sort -rn | head -n "$slowest"
[ -z "$shaky" ] || printf 'PASSED ONLY AT THE SECOND TRY, to be looked into:\n%s' "$shaky"
exit "$worst"
