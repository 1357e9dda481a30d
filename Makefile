# Set-up, tests and builds: `make help` lists the targets.
# PYTHON is the interpreter for .venv; ARGS is passed to the program that a target runs.

PYTHON ?= python3
ARGS ?=
BIN := .venv/bin
BENCH ?= $(filter-out %/__init__.py,$(wildcard benchmarks/*.py))

.DEFAULT_GOAL := help
.PHONY: help demo env test test-matrix test-fast soak fuzz lint format docs bench wheel clean

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

demo:  ## create a small environment and train a model in it
	@$(PYTHON) tools/environment.py demo
	@$(BIN)/python examples/demo.py $(ARGS)

env:  ## create the full environment in .venv: every framework and runtime, and the tools for tests and docs
	@$(PYTHON) tools/environment.py full

test:  ## create the full environment, then check style, types, documentation and behavior (ARGS go to pytest)
	@$(PYTHON) tools/environment.py full
	@$(MAKE) --no-print-directory lint
	@$(MAKE) --no-print-directory docs ARGS=
	@$(PYTHON) tools/run_tests.py $(ARGS)

test-matrix: $(BIN)/pytest  ## every conformance check and every fault, for every backend on every runtime, as tables
	@echo "==> pytest, every backend on every runtime"
	@$(BIN)/python -m pytest tests/conformance --matrix $(ARGS)
	@$(BIN)/python -m pytest tests/conformance --matrix --mxnet $(ARGS)

soak: $(BIN)/pytest  ## an hour of random calls and faults on one context (ARGS="--minutes 5 --runtime ray")
	@$(BIN)/python -m orca.testing.soak $(ARGS)

fuzz: $(BIN)/pytest  ## 100,000 cases for each fuzz target (ARGS="--cases 1000 --targets rows,states")
	@$(BIN)/python -m tests.fuzzing $(ARGS)

test-fast: $(BIN)/pytest  ## the tests that need no Ray, Spark or Horovod, in under two minutes
	@echo "==> pytest, fast part"
	@$(BIN)/python -m pytest -m "not ray and not spark and not horovod and not slow" $(ARGS)

lint: $(BIN)/ruff $(BIN)/mypy  ## ruff check, ruff format --check and mypy
	@echo "==> ruff check"
	@$(BIN)/ruff check
	@echo "==> ruff format --check"
	@$(BIN)/ruff format --check
	@echo "==> mypy"
	@$(BIN)/mypy

format: $(BIN)/ruff  ## sort imports and format the code
	@$(BIN)/ruff check --fix
	@$(BIN)/ruff format

docs: $(BIN)/sphinx-build  ## build the documentation into docs/_build/html
	@echo "==> sphinx-build"
	@TF_CPP_MIN_LOG_LEVEL=3 $(BIN)/sphinx-build -q -W docs docs/_build/html $(ARGS)

bench: $(BIN)/ray  ## run the scripts in benchmarks/, or BENCH="benchmarks/one.py"
	@for script in $(BENCH); do echo "==> $$script"; $(BIN)/python $$script $(ARGS) || exit 1; done

wheel: $(BIN)/pyproject-build  ## build the wheel and the source archive into dist/
	@$(BIN)/python -m build $(ARGS)

clean:  ## remove .venv, builds and caches
	@$(PYTHON) tools/environment.py clean

# The full environment provides every program that .venv lacks.
$(BIN)/%:
	@$(PYTHON) tools/environment.py full
