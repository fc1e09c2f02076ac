# Everything a person types. A target that needs the environment makes it first (tools/setup.py, once).

PYTHON ?= $(shell for name in python3.11 python3.12 python3.13 python3; do \
	$$name -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$name && break; done)
RUN := .venv/bin/python
ARGS ?=

# One thread for each process: environments, engine and trainer share the cores, and idle threads of OpenMP spin.
export OMP_NUM_THREADS ?= 1
# Else each of a hundred processes would compile this package, and pytest all tests, again.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help setup desktop desktop-stop osworld train smoke view test test-all test-fast check format lock clean

help:  ## Show this list.
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-13s %s\n", $$1, $$2}'

setup:  ## Make .venv with the pinned requirements and find or install Chromium; a second call starts at once.
ifeq ($(PYTHON),)
	@echo "ARPO needs Python 3.11 or newer. Install one, or name it: make $(MAKECMDGOALS) PYTHON=/path/to/python3" >&2; exit 1
else
	@$(PYTHON) tools/setup.py
endif

desktop: setup  ## Build the Docker desktop image (ARGS=full: one more) and check this machine; as root, start an engine if there is none.
	eval "$$(bash docker/start_engine.sh)" && for image in plain $(ARGS); do bash docker/build_image.sh $$image || exit; done && $(RUN) -m arpo doctor

desktop-stop:  ## End the Docker engine that `make desktop` started, with its containers; images stay.
	@bash docker/stop_engine.sh

osworld:  ## Make .venv-osworld, where OSWorld's own graders run; see docs/osworld.md.
	@$(PYTHON) tools/osworld.py

train: setup  ## Train the tiny agent on MiniWoB++ with ARPO, warm start included. Overrides: make train ARGS="seed=2".
	$(RUN) train.py experiment=arpo_miniwob resume=auto $(ARGS)

smoke: setup  ## Run the whole loop on the fake desktop, in about a minute.
	$(RUN) train.py experiment=smoke $(ARGS)

view: setup  ## Show the last run in a browser. Another one, or two: make view ARGS="outputs/arpo_miniwob/default".
	$(RUN) -m arpo view --open $(ARGS)

PYTEST := $(RUN) -m pytest -n 4 --dist loadfile --no-loadscope-reorder --durations=8

test: setup  ## Run the tests that this machine can run, four files at a time; the others say why they are skipped.
	$(PYTEST) -m "not long" $(ARGS)

test-all: setup  ## Run the long tests too: a kill in every phase, desktops under attack, real lengths, the paper's runs.
	$(PYTEST) $(ARGS)

test-fast: setup  ## Run the tests without browser, engine, Ray and other slow parts.
	$(RUN) -m pytest -m "not slow and not browser and not engine and not ray and not gpu and not docker and not long" $(ARGS)

check: setup  ## Check lint, format, types and the order of layers.
	$(RUN) -m ruff check .
	$(RUN) -m ruff format --check .
	$(RUN) -m mypy
	$(RUN) -c 'from importlinter.cli import lint_imports_command; lint_imports_command()'

format: setup  ## Format the code and fix what ruff can fix.
	$(RUN) -m ruff check --fix .
	$(RUN) -m ruff format .

lock:  ## Resolve requirements.txt into requirements/cpu.lock; run it after changing a pin, then make test.
	@$(PYTHON) tools/setup.py lock

clean:  ## Remove the environment and every cache; outputs/ and multirun/ stay.
	rm -rf .venv .venv-osworld .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache .benchmarks
	find arpo tests tools benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +
