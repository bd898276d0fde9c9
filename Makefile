# make train   set up .venv and train the default agent     ARGS="--workdir=runs/x --config.train.iterations=20"
# make test    set up .venv and run every check             make fast: without the slow tests   PYTEST_ARGS="-k aem"
# make lock    resolve requirements/*.lock anew             make format, make lint, make clean
#
# PYTHON=python3.12 chooses the interpreter; PIP_ARGS goes to pip (an index, a cache, a proxy).

SHELL := /bin/bash
PYTHON ?= $(shell for p in python3 python3.14 python3.13 python3.12 python3.11; do \
  $$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 && { echo $$p; break; }; done)
PIP_ARGS ?=
CONFIG ?= configs/alfworld_aem.py
ARGS ?=
PYTEST_ARGS ?=
# Test files are shared out over the cores; more processes than this compile more than they save.
WORKERS ?= -n auto --maxprocesses=4 --dist=loadfile
BIN := .venv/bin
PIP := $(BIN)/python -m pip install --disable-pip-version-check --quiet $(PIP_ARGS)

.PHONY: train test fast lint format lock clean

train: .venv/.train
	$(BIN)/python main.py --config=$(CONFIG) $(ARGS)

test: lint
	$(BIN)/python -m pytest $(WORKERS) $(PYTEST_ARGS)

fast: lint
	$(BIN)/python -m pytest -m "not slow" $(WORKERS) $(PYTEST_ARGS)

lint: .venv/.test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright
	$(BIN)/lint-imports --no-logo

format: .venv/.test
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

.venv/bin/python:
	@test -n "$(PYTHON)" || { echo "error: agentropy needs Python 3.11 or newer; none found as python3," \
	  "python3.11 ... python3.14. Install one or run: make PYTHON=/path/to/python" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "error: agentropy needs Python 3.11" \
	  "or newer; $(PYTHON) is older or does not run" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { echo "error: $(PYTHON) lacks the venv module;" \
	  "on Debian and Ubuntu: apt install python3-venv (or python3.NN-venv for another version)" >&2; exit 1; }
	@$(PYTHON) -m venv .venv || { rm -rf .venv; exit 1; }

# The stamps are newer than the locks they were installed from, so that a second make installs nothing.
.venv/.train: requirements/train.lock | .venv/bin/python
	@echo "installing requirements/train.lock into .venv"
	@$(PIP) -r requirements/train.lock
	@touch $@

.venv/.test: requirements/test.lock | .venv/bin/python
	@echo "installing requirements/test.lock into .venv"
	@$(PIP) -r requirements/test.lock
	@touch $@ .venv/.train

# Both locks come from one resolution, so they agree; jax is held at the release that the numbers were measured on.
lock: | .venv/bin/python
	$(BIN)/python requirements/lock.py $(PIP_ARGS)

clean:
	rm -rf .venv build dist *.egg-info .pytest_cache .ruff_cache .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
