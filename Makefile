# Two commands for a fresh machine with Python >= 3.11, make and a package index; each works alone and first.
#   make demo   set up and run the main job on generated logs
#   make test   set up and run the tests
PYTHON ?= python3
VENV ?= .venv
BIN = $(VENV)/bin

.PHONY: demo test lint check accuracy detectors speed speedcheck clean help

help:
	@sed -n 's/^#   //p' Makefile

demo: $(VENV)/.defib
	@$(BIN)/python bench/demo.py

test: $(VENV)/.defib-test
	$(BIN)/python -m pytest -n 2 --dist loadfile

lint: $(VENV)/.defib-test $(VENV)/.defib-lint
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/defib rules check

check: lint test

accuracy: $(VENV)/.defib
	$(BIN)/python bench/accuracy.py

detectors: $(VENV)/.defib
	$(BIN)/python bench/detectors.py --jobs 2

speed: $(VENV)/.defib
	$(BIN)/python bench/speed.py

speedcheck: $(VENV)/.defib
	$(BIN)/python bench/speed.py --check

$(VENV)/bin/python:
	$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "defib needs Python 3.11 or newer; name one with PYTHON=...")'
	$(PYTHON) -m venv $(VENV)

$(VENV)/.defib: pyproject.toml $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet --upgrade 'pip>=25.1'
	$(BIN)/python -m pip install --quiet --editable .
	@touch $@

$(VENV)/.defib-test: $(VENV)/.defib
	$(BIN)/python -m pip install --quiet --group test
	@touch $@

$(VENV)/.defib-lint: $(VENV)/.defib
	$(BIN)/python -m pip install --quiet --group lint
	@touch $@

clean:
	rm -rf $(VENV) demo-out build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
