# Everything happens in a virtual environment of its own, .venv, made on first use.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo test lint clean

demo: .venv/ready
	$(BIN)/dpilot demo

test: .venv/ready-dev
	$(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/mypy
	OMP_NUM_THREADS=1 $(BIN)/pytest -n auto

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
	rm -rf .venv
