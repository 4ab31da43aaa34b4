# Each target installs what it needs first; a second run finds it there and starts at once.

# The interpreter that .venv is made with: 3.11 or newer. By default setup.sh looks for one.
PYTHON ?=
# For machines without an NVIDIA GPU: the address of PyTorch's CPU packages, as PyTorch's own installation page gives it.
TORCH_INDEX ?=
# What the tests use beside Python. `make test` installs what is missing if it may (Debian, root); without it their tests are skipped.
DEBIAN_PACKAGES := python3-venv git gnugo stockfish openssh-server openssh-client iproute2
# And the browser that tests open pages in. Only `make test-all` installs it.
BROWSER_PACKAGES := chromium chromium-driver
# How many tests run beside each other: auto is two more than there are processors; 0 runs one after the other, in one process.
TESTS_AT_ONCE ?= auto
PACKAGES := keima games training distributed zero scripts tools $(wildcard benchmarks/*.py benchmarks/*/*.py benchmarks/*/*/*.py examples/*.py *.py)

# A file's tests run in one process, one after the other. Files begin in the order that tests/conftest.py puts them in.
PYTEST := .venv/bin/python -m pytest --numprocesses=$(TESTS_AT_ONCE) --dist=loadfile --no-loadscope-reorder

# Tests marked numeric compare numbers, some to the last bit. They run once more as on a processor that has AVX2 alone: other kernels, other rounding.
OTHER_PROCESSOR := ONEDNN_MAX_CPU_ISA=AVX2 ATEN_CPU_CAPABILITY=avx2

export PYTHON TORCH_INDEX
# Tests start hundreds of programs, which would compile all modules each time.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help lock setup setup-dev train test test-all test-gpu check format clean

help:  ## Show the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-9s %s\n", $$1, $$2 }' Makefile

setup:  ## Make .venv with what training needs
	@scripts/setup.sh requirements.txt

setup-dev:  # and with what the tests need
	@scripts/setup.sh requirements.txt requirements-openspiel.txt requirements-dev.txt

train: setup  ## Train the quickstart: Connect Four, about ten minutes on two cores
	.venv/bin/python start_main.py --config configs/quickstart.yaml

# The search is compiled while pip, which uses one core, installs the rest.
test:  ## Run every test that is not marked slow
	@scripts/debian_packages.sh $(DEBIAN_PACKAGES)
	@$(MAKE) --no-print-directory setup
	@.venv/bin/python start_worker.py --test-games tic_tac_toe >/dev/null 2>&1 & \
	$(MAKE) --no-print-directory setup-dev && $(PYTEST) -m "not slow" --durations=25

test-all:  ## Run the slow tests too, and the numeric ones once more as on another processor
	@scripts/debian_packages.sh $(DEBIAN_PACKAGES) $(BROWSER_PACKAGES)
	@$(MAKE) --no-print-directory setup-dev
	$(OTHER_PROCESSOR) $(PYTEST) --numprocesses=0 -q -m "numeric and not slow"
	$(PYTEST)

# One process, as most of its time is the GPU's. The tests see the GPU by that variable alone.
test-gpu:  ## Run the tests that need a GPU
	@$(MAKE) --no-print-directory setup-dev
	KEIMA_TEST_GPU=1 $(PYTEST) --numprocesses=0 -m gpu --durations=10

check: setup-dev  ## Run the linters, the type checker and the fast tests
	.venv/bin/ruff check
	.venv/bin/ruff format --check
	.venv/bin/mypy $(PACKAGES)
	.venv/bin/lint-imports --no-logo --cache-dir=.mypy_cache/imports
	$(PYTEST) -q -m "not slow and not trial and not medium"

format: setup-dev  ## Let the linter put right what it can
	.venv/bin/ruff check --fix
	.venv/bin/ruff format

lock:  ## Lock the newest packages that pyproject.toml allows (needs uv)
	python3 tools/lock.py

clean:  ## Remove .venv and all caches; runs stay
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
