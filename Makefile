# One command sets up and runs, one command tests; CI calls the same. `make` alone lists the targets.
SHELL := /bin/sh
.DEFAULT_GOAL := help
BIN := .venv/bin
PYTHON ?= python3
export PYTHON
# The two tiers of tests below the long one: `make test` leaves out what only `make chaos` runs, `make test-fast` also
# whatever starts Spark, a server process, an object store, Kafka or Kinesis.
FULL := not chaos
FAST := not chaos and not spark and not server and not s3 and not kafka and not kinesis
# `make test` as five runs beside each other: what shares one server; what starts servers of its own; what shares one
# broker; what shares one Spark session, one object store and one Kinesis; and what needs none of those, which gets no
# second try.
SHARING := spark or s3 or kinesis
PYTEST_ARGS ?=
LOCKED := pyproject.toml tools/setup.sh

.PHONY: help setup setup-dev demo test test-fast bench chaos docs lint fmt lock clean

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1|\2/p' Makefile | awk -F'|' '{ printf "%-18s %s\n", $$1, $$2 }'

setup: .venv/.stamp-run ## make .venv with what the server needs: .venv/bin/tidemill
setup-dev: .venv/.stamp-dev ## also the tools of the tests and the linters

# Stamps: installing again what is there takes seconds, looking at two files none. The dev lock holds all of the run lock.
.venv/.stamp-run: $(LOCKED) lock/run.txt
	@if [ -e .venv/.stamp-dev ]; then tools/setup.sh dev && touch .venv/.stamp-dev; else tools/setup.sh run; fi
	@touch $@
.venv/.stamp-dev: $(LOCKED) lock/dev.txt lock/run.txt
	@tools/setup.sh dev
	@touch .venv/.stamp-run $@

demo: .venv/.stamp-run ## a server and a live auction house in the terminal; Ctrl-C or DEMO_SECONDS=20 ends it
	@$(BIN)/tidemill demo

test: .venv/.stamp-dev ## lint and all tests but the long ones
	tools/test.sh "$(FULL) and server and not (shared or $(SHARING) or kafka)" "$(FULL) and shared and not ($(SHARING) or kafka)" \
	  "$(FULL) and kafka" "$(FULL) and ($(SHARING)) and not kafka" \
	  --once "$(FAST)" -- $(PYTEST_ARGS)

test-fast: .venv/.stamp-dev ## tests without Spark, servers, brokers and object stores: six minutes
	$(BIN)/pytest -m "$(FAST)" $(PYTEST_ARGS)

chaos: .venv/.stamp-dev ## the long rounds of kills, races and faults, and new examples for the properties
	$(BIN)/pytest -m "$(FAST)" --hypothesis-profile hunt $(PYTEST_ARGS)
	$(BIN)/pytest -m chaos --timeout 7200 $(PYTEST_ARGS)

bench: .venv/.stamp-dev ## measure; figures as in docs/benchmarks.md
	$(BIN)/python -m bench $(BENCH_ARGS)

docs: ## the documentation as a site: .cache/site/index.html
	@tools/docs.sh

lint: .venv/.stamp-dev ## ruff, pyright, and the order of the layers
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright
	$(BIN)/lint-imports

fmt: .venv/.stamp-dev ## format the code and mend what ruff can mend
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

lock: ## rewrite lock/*.txt from pyproject.toml (needs uv)
	tools/lock.sh

clean: ## remove .venv and all caches
	rm -rf .venv .cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache dist
	find src tests bench -name __pycache__ -type d -prune -exec rm -rf {} +
