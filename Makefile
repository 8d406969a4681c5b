# Everything happens in a virtual environment of its own, .venv, made on first use.
PYTHON ?= python3
BIN := .venv/bin
STYLE := $(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/mypy
# Compiled modules are kept, whatever the shell says: pytest compiles each test with its assertions, in every worker.
PYTEST := PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1 $(BIN)/pytest -n auto

.PHONY: demo check test docs lint clean

demo: .venv/ready
	$(BIN)/dpilot demo

# Style, types and the tests that tell most for their time: under a minute on two cores.
check: .venv/ready-dev
	$(STYLE)
	$(PYTEST) @tests/quick.txt

# The gate: style, types, the pages of the documentation and every test.
test: .venv/ready-dev docs
	$(STYLE)
	$(PYTEST)

docs: .venv/ready-dev
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

lint: .venv/ready-dev
	$(BIN)/ruff check --fix . && $(BIN)/ruff format . && $(BIN)/mypy

.venv/ready: pyproject.toml
	$(PYTHON) -m venv .venv
	$(BIN)/pip install -q -e .
	touch $@

.venv/ready-dev: .venv/ready
	$(BIN)/pip install -q -e ".[dev]"
	touch $@

clean:
	rm -rf .venv build
