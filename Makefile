# `make help` lists the targets. Everything is installed into .venv; nothing outside the checkout is touched.

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
SHELL := /bin/bash
unexport PYTHONDONTWRITEBYTECODE # else each of hundreds of processes compiles PyTorch

# The first interpreter that is Python 3.11 or newer. Choose another with `make PYTHON=/path/to/python ...`.
PYTHON ?= $(shell for python in python3.11 python3 python3.12 python3.13 python; do \
	"$$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo "$$python" && break; done)

VENV := .venv
BIN := $(VENV)/bin
INSTALL := $(BIN)/python -m pip install --disable-pip-version-check -c constraints.txt
RUN_READY := $(VENV)/.ready-to-run
DEV_READY := $(VENV)/.ready-to-develop
WORKERS := 3 # on 2 cores: tests of processes wait

.PHONY: help
help: ## List the targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 20

.PHONY: train
train: $(RUN_READY) ## Install what running needs and train PPO on CartPole-v1
	$(BIN)/palaestra train ppo CartPole-v1

.PHONY: test
test: style ## Everything a change must pass: lint, types, fast tests (under 10 minutes on 2 cores)
	@$(MAKE) --no-print-directory --jobs 2 types fast-tests

.PHONY: test-all
test-all: style ## The same with the slow (learning) and fault tests
	@$(MAKE) --no-print-directory --jobs 2 types all-tests

.PHONY: lint
lint: style types ## Style, format and types

.PHONY: style types fast-tests all-tests
style: $(DEV_READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
types: $(DEV_READY) # one thread, so it runs beside the tests
	$(BIN)/pyright
fast-tests: $(DEV_READY)
	$(BIN)/pytest -n $(WORKERS) -m "not slow and not fault"
all-tests: $(DEV_READY)
	$(BIN)/pytest -n $(WORKERS)

.PHONY: docs
docs: $(DEV_READY) ## Build the documentation into site/, with the gallery; a broken link is an error
	$(BIN)/python tools/commands_page.py
	$(BIN)/zensical build --strict --clean
	$(BIN)/python -m tools.markdown_pages
	$(BIN)/python -m tools.gallery

.PHONY: coverage
coverage: $(DEV_READY) ## Regenerate docs/coverage.md and docs/reliability/: what is proven by which test
	$(BIN)/python tools/requirement_coverage.py
	$(BIN)/python tools/fault_table.py

.PHONY: faults
faults: $(DEV_READY) ## Run the tests of all faults, and keep when they were seen to hold (an hour)
	$(BIN)/python tools/fault_table.py run

.PHONY: bench
bench: $(RUN_READY) ## Run the speed benchmarks beside their peers
	$(BIN)/python -m benchmarks.speed

.PHONY: mutants
mutants: $(DEV_READY) ## Change newer files in 300 places and count what the tests notice (an hour or two)
	$(BIN)/python -m tools.mutants --since 03a29d0 --jobs $(WORKERS)

.PHONY: clean
clean: ## Remove .venv, caches and build outputs; keep runs/
	rm -rf $(VENV) site build dist .cache .pytest_cache .ruff_cache .hypothesis
	find src tests tools examples benchmarks docs -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true

# A stamp is older than pyproject.toml or constraints.txt exactly when the environment must be installed again.
$(BIN)/python:
ifeq ($(strip $(PYTHON)),)
	@echo "error: no Python 3.11 or newer found (tried python3.11, python3, python3.12, python3.13, python)." >&2
	@echo "       Install Python 3.11, or name one: make PYTHON=/path/to/python3.11 $(MAKECMDGOALS)" >&2
	@exit 1
else
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo "error: $(PYTHON) is $$($(PYTHON) --version 2>&1), but Python 3.11 or newer is needed." >&2; exit 1; }
	@$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); \
		echo "error: $(PYTHON) cannot make a virtual environment; on Debian and Ubuntu: apt install python3-venv" >&2; exit 1; }
endif

$(RUN_READY): pyproject.toml constraints.txt | $(BIN)/python
	$(INSTALL) -e '.[video]'
	@touch $@

# Most of 20,000 modules are never imported: Python compiles those that are, which takes a minute less.
$(DEV_READY): pyproject.toml constraints.txt | $(BIN)/python
	$(INSTALL) --no-compile -e '.[dev]'
	@touch $(RUN_READY) $@
