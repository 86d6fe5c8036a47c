# Two commands do everything on a fresh machine: `make demo` and `make test`.
PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
INSTALL := $(BIN)/python -m pip install --quiet --constraint constraints.txt
# They name torchvision, which nothing here needs and which may bring another torch: so without dependencies.
ALONE := laplace-torch backpack-for-pytorch curvlinops-for-pytorch

.PHONY: demo test lint format clean

demo: $(READY)
	$(BIN)/trustgp demo

# A process per core, with a thread each: more would wait for one another. The tests of a file stay together,
# since what they share, such as a small run of a study, would else be made in each process.
test: $(READY)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto --dist loadfile --no-loadscope-reorder

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright

format: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# Installed once, and again only when what is installed has changed.
$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(INSTALL) --editable ".[dev]"
	$(INSTALL) --no-deps $(ALONE)
	touch $(READY)

clean:
	rm -rf $(VENV) build dist demo .pytest_cache .ruff_cache .hypothesis
