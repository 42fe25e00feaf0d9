PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
INSTALLING := $(VENV)/.installing

BENCHMARKS := benchmarks/throughput.py benchmarks/server.py benchmarks/hardware_model.py \
	benchmarks/trial_overhead.py benchmarks/surfaces.py benchmarks/simulator.py
SCRIPTS := $(wildcard jobs/*.py benchmarks/*.py)

.PHONY: help train test test-all check bench clean

help:
	@echo "make train      train LeNet on the digits, with no hyper-parameters"
	@echo "make test       the fast tests"
	@echo "make test-all   all tests"
	@echo "make check      ruff and mypy"
	@echo "make bench      the benchmarks, as ratios"
	@echo "make clean      remove the environment, caches and build outputs"

# The marker turns into the stamp as the very last step, so an installation that was cut short is
# begun anew.
$(INSTALLED): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit("Python >= 3.11 is needed: make PYTHON=..." if sys.version_info < (3, 11) else 0)'
	@if [ -e $(INSTALLING) ]; then rm -rf $(VENV); fi
	@mkdir -p $(VENV) && touch $(INSTALLING)
	@echo "Installing into $(VENV); the first time takes a few minutes" >&2
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install -qq --disable-pip-version-check -c constraints.txt setuptools
	@$(BIN)/python -m pip install -qq --disable-pip-version-check -c constraints.txt \
		--no-build-isolation --editable '.[dev]'
	@mv $(INSTALLING) $@

train: $(INSTALLED)
	@$(BIN)/python jobs/train.py

test: $(INSTALLED)
	@$(BIN)/python -m pytest -q -m "not slow and not cluster and not notebook"

test-all: $(INSTALLED)
	@$(BIN)/python -m pytest -q

check: $(INSTALLED)
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy omnivore_ray $(SCRIPTS)

bench: $(INSTALLED)
	@set -e; for script in $(BENCHMARKS); do echo "== $$script"; $(BIN)/python $$script; done

clean:
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
