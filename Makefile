# On a machine with Python, git and make, every target sets up what it needs.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready
# The tests of one file run in one process, which compiles and simulates once for all of them.
PYTEST := $(BIN)/pytest -n 2 --dist loadfile

.PHONY: setup demo docs test test-slow test-torch test-gpu fuzz mutants check format bench validate clean

setup: $(READY)

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev]"
	$(BIN)/python -m compileall -q tilewave
	touch $(READY)

# The demo needs the package alone, which is there sooner than the tools of those who work on it.
PACKAGE := .venv/.package
demo: $(if $(wildcard $(READY)),,$(PACKAGE))
	$(BIN)/python examples/demo.py

$(PACKAGE):
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e .
	touch $(PACKAGE)

# A site with search that needs no network: open build/site/index.html.
docs: $(READY)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "open build/site/index.html"

test: $(READY)
	$(PYTEST) -m "not slow"

# Every case of every sweep, and all examples of property tests.
test-slow: $(READY)
	TILEWAVE_TEST_ALL=1 $(PYTEST)

# torch is several gigabytes, so neither `setup` nor the CI installs it; without it these tests are skipped.
TORCH := .venv/.torch
test-torch: $(TORCH)
	$(PYTEST) -m "not slow" tests/in_torch tests/ops tests/test_documents.py -k "in_torch or ops or torch"

$(TORCH): $(READY)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[torch]"
	touch $(TORCH)

test-gpu: $(READY)
	$(BIN)/pytest -n 0 -m gpu tests/gpu

# Random kernels, calls, commands and damaged inputs, until FUZZ_SECONDS are over; what is found is written below build/fuzz.
FUZZ_SECONDS ?= 3600
FUZZ_SEED ?= $(shell date +%s)
fuzz: $(READY)
	$(BIN)/python -m tests.fuzz --seconds $(FUZZ_SECONDS) --seed $(FUZZ_SEED) --out build/fuzz

# Changed lines, broken one operator at a time; a mutant that no test notices is listed. FILES='tilewave/ops/*' narrows it.
BASE ?=
COUNT ?= 60
SEED ?= 1
FILES ?= *
mutants: $(READY)
	$(BIN)/python -m tests.mutants --base "$(BASE)" --count $(COUNT) --seed $(SEED) --files "$(FILES)"

check: $(READY)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	MYPY_NUM_WORKERS=2 $(BIN)/mypy
	$(BIN)/lint-imports
	$(PYTEST) -m "not slow"

format: $(READY)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: $(READY)
	$(BIN)/python benchmarks/compile_time.py

validate: $(READY)
	$(BIN)/python benchmarks/fit_amd.py
	$(BIN)/python benchmarks/validate_sim.py

clean:
	rm -rf .venv build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
