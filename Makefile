# Everything a clone needs: Python >= 3.11, make and pip. Dependencies are installed into .venv, pinned and hash-checked.

SHELL := /bin/sh
.DEFAULT_GOAL := help
.SUFFIXES:

VENV := .venv
BIN := $(VENV)/bin
PY := $(BIN)/python

# The first Python that is new enough; `make PYTHON=/path/to/python …` overrides.
PYTHON ?= $(shell for python in python3 python3.13 python3.12 python3.11 python3.14 python; do \
	"$$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo "$$python" && break; done)

# A stamp's name carries the checksum of what it installed: a changed file is a missing stamp, whatever its time says.
SUM = $(shell cat $(1) | cksum | tr -d ' ')
SERVER := $(VENV)/.server-$(call SUM,requirements/build.txt requirements/server.txt)
DEV := $(VENV)/.dev-$(call SUM,requirements/build.txt requirements/dev.txt)
PACKAGE := $(VENV)/.package-$(call SUM,pyproject.toml)

# Debian's Python may come without ensurepip; then the pip beside it installs into the environment.
PIP = $(shell test -d $(VENV)/lib/python*/site-packages/pip && echo "$(PY) -m pip" || echo "$(PYTHON) -m pip --python $(PY)")
INSTALL = $(PIP) --disable-pip-version-check install --quiet

.PHONY: help demo serve bench test lint simulate power-cut crash outbox soak ablation setup clean requirements

help:  ## This list
	@grep -E '^[a-z-]+:.*  ## ' Makefile | sed -E 's/^([a-z-]+):.*  ## (.*)/\1	\2/' | expand -t 14

demo: $(SERVER) $(PACKAGE)  ## Show what Ackpost does, with real requests (ONCE=1: end by itself)
	@$(BIN)/ackpost demo $(if $(ONCE),--once)

serve: $(SERVER) $(PACKAGE)  ## A server for this machine: http and loopback targets allowed (ARGS="--port 9000")
	@$(BIN)/ackpost serve --dev $(ARGS)

bench: $(SERVER) $(PACKAGE)  ## Measure accept and delivery rates (ARGS="--compare")
	@$(BIN)/ackpost bench $(ARGS)

test: lint  ## Lint, types, import contracts, then the whole test suite
	$(BIN)/coverage erase
	$(BIN)/coverage run -m pytest tests/core
	$(BIN)/coverage report --fail-under=100
	$(PY) -m pytest

lint: setup  ## Ruff, mypy and the import contracts only
	$(BIN)/ruff check
	$(BIN)/mypy
	$(BIN)/lint-imports

simulate: setup  ## The simulation alone, fresh worlds (SEEDS=5000; SEED=17 replays one; NODES=3), on all cores
	$(PY) -m tests.simulation $(if $(NODES),--nodes $(NODES)) $(if $(SEED),--seed $(SEED)) $(if $(SEEDS),--seeds $(SEEDS)) $(ARGS)

power-cut: setup  ## Cut the power under load, 20 times or CUTS=n (as root, on Linux)
	POWER_CUTS=$(or $(CUTS),20) $(PY) -m pytest -q -s tests/power_cut $(ARGS)

crash: setup  ## Kill a server again and again under mixed load (KILLS=200)
	CRASH_KILLS=$(or $(KILLS),200) $(PY) -m pytest -q -s tests/process/test_crash_mixed.py $(ARGS)

outbox: setup  ## The example with an outbox, its processes killed again and again (ORDERS=10000)
	OUTBOX_ORDERS=$(or $(ORDERS),10000) $(PY) -m pytest -q -s tests/examples/test_sqlalchemy_orders.py $(ARGS)

soak: setup  ## A long run with faults, memory and descriptors watched (MINUTES=60)
	SOAK_MINUTES=$(or $(MINUTES),60) $(PY) -m pytest -q -s tests/process/test_soak.py $(ARGS)

ablation: setup  ## Plant each known fault in a copy and see the tests notice (FAULT=no_fence for one)
	$(PY) -m tests.planted $(FAULT) $(ARGS)

setup: $(DEV) $(PACKAGE)  ## The environment for development, in .venv

requirements: setup  ## Pin the dependencies of pyproject.toml again
	$(PY) requirements/compile.py

clean:  ## Remove what the other targets made
	rm -rf $(VENV) build dist .coverage .hypothesis .mypy_cache .ruff_cache .pytest_cache .import_linter_cache src/*.egg-info
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +

$(PY):
	@test -n "$(PYTHON)" || { echo "Ackpost needs Python 3.11 or newer; none was found. Name one: make PYTHON=/path/to/python" >&2; exit 1; }
	@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Ackpost needs Python 3.11 or newer, and $(PYTHON) is not." >&2; exit 1; }
	@if "$(PYTHON)" -c 'import ensurepip' 2>/dev/null; then "$(PYTHON)" -m venv --clear $(VENV); else "$(PYTHON)" -m venv --clear --without-pip $(VENV); fi

$(SERVER): | $(PY)
	@echo "Installing the server's dependencies into $(VENV) …"
	@$(INSTALL) --require-hashes -r requirements/build.txt -r requirements/server.txt
	@rm -f $(VENV)/.server-*; touch $@

$(DEV): | $(PY)
	@echo "Installing the development dependencies into $(VENV) …"
	@$(INSTALL) --require-hashes -r requirements/build.txt -r requirements/dev.txt
	@rm -f $(VENV)/.dev-* $(VENV)/.server-*; touch $@ $(SERVER)

$(PACKAGE): | $(PY) $(SERVER)
	@$(INSTALL) --no-deps --no-build-isolation --editable .
	@rm -f $(VENV)/.package-*; touch $@
