# Two commands do everything on a fresh machine: `make demo` and `make test`.
PYTHON ?= python3.11
VENV := .venv
BIN = $(VENV)/bin
READY := $(VENV)/.ready
CONSTRAINTS := constraints.txt
OLDEST := .venv-oldest
INSTALL = $(BIN)/python -m pip install --quiet --constraint $(CONSTRAINTS)
# They name torchvision, which nothing here needs and which may bring another torch: so without dependencies.
ALONE := laplace-torch backpack-for-pytorch curvlinops-for-pytorch

# Around the library: the studies and their peers, the pages and their examples.
AROUND := experiments/tests tests/test_docs.py tests/test_examples.py tests/test_site.py
# Of these those that take seconds: stored results, the figures that pages quote from them, the site.
PAGES := $(wildcard experiments/tests/test_*.py) tests/test_site.py

.PHONY: demo test test-oldest test-nightly test-pages test-around test-all lint format docs serve-docs clean

demo: $(READY)
	$(BIN)/trustgp demo

# A process per core, with one thread each. The tests of a file run in one process, since they share fixtures,
# such as a small run of a study.
PYTEST = OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto --dist loadfile --no-loadscope-reorder

test: $(READY)
	$(PYTEST) -m "not nightly" tests $(addprefix --ignore=,$(AROUND))

# The oldest Python and the lower bounds of pyproject.toml, in an environment of their own.
test-oldest: PYTHON := python3.10
test-oldest: VENV := $(OLDEST)
test-oldest: CONSTRAINTS := constraints-oldest.txt
test-oldest: $(OLDEST)/.ready
	$(PYTEST) -m "not nightly" tests $(addprefix --ignore=,$(AROUND))

$(OLDEST)/.ready: pyproject.toml experiments/pyproject.toml constraints-oldest.txt
	$(PYTHON) -m venv $(VENV)
	$(INSTALL) --editable ".[test]" --editable ./experiments
	touch $@

test-nightly: $(READY)
	$(PYTEST) -m nightly

test-pages: $(READY)
	$(PYTEST) -m "not nightly" $(PAGES)

test-around: $(READY)
	$(PYTEST) -m "not nightly" $(AROUND)

test-all: test test-around test-nightly

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright --threads 2

format: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# The site, into site/. It runs every example of the gallery that has changed: minutes, the first time.
docs: $(READY)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

# While you write: pages follow as files are saved. TRUSTGP_GALLERY=none leaves the examples out.
serve-docs: $(READY)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs serve

# Installed once, and again only when what is installed has changed.
$(READY): pyproject.toml experiments/pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(INSTALL) --editable ".[dev]" --editable "./experiments[peers,sim]"
	$(INSTALL) --no-deps $(ALONE)
	touch $(READY)

clean:
	rm -rf $(VENV) $(OLDEST) build dist demo site .cache .pytest_cache .ruff_cache .hypothesis
