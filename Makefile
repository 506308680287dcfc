# Everything a developer or an operator runs on one machine. `make help` lists it.
PYTHON ?= python3
VENV ?= .venv
# The CPU build on a development machine; on a GPU machine install the extra `gpu` instead.
TORCH ?= torch==2.13.0
BIN = $(VENV)/bin
STAMP = $(VENV)/.tandem-dev
PYTEST = $(BIN)/python -m pytest
COUNTERS = gpu__time_duration.sum,$(subst @,.avg.pct_of_peak_sustained_elapsed,gpu__dram_throughput@,lts__throughput@,sm__throughput@,sm__issue_active@)
export OMP_NUM_THREADS ?= 1

.DEFAULT_GOAL := help
.PHONY: help setup demo test helm-test check fmt protos constraints bench bench-gpu bench-counters test-matrix test-faults \
  clean

help: ## List the targets
	@grep -hE '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

setup: $(STAMP) ## Create the virtual environment and install the project with its development tools

$(STAMP): pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet "$(TORCH)"
	$(BIN)/python -m pip install --quiet -e '.[dev]'
	touch $@

demo: setup ## Start a whole cluster on this machine and let the demonstration model answer a prompt
	$(BIN)/tandem demo

test: setup check ## Run every check and every test that needs no GPU
	$(PYTEST) -m "not gpu and not matrix and not faults and not helm"

check: setup ## Lint and type-check
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

fmt: setup ## Format the code and apply safe fixes
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

protos: setup ## Regenerate the gRPC stubs
	$(BIN)/python protos/generate.py

bench-gpu: ## On one H200: every kernel test, then every layer and kernel benchmark, as JSON (install the extras `gpu` and `dev` first)
	@failed=; \
	$(PYTHON) -m pytest -n 8 tests/kernels || failed=tests; \
	$(PYTHON) -m kernels.bench layer --json layer.json || failed="$$failed layer"; \
	$(PYTHON) -m kernels.bench kernels --json kernels.json || failed="$$failed kernels"; \
	test -z "$$failed" || { echo "failed: $$failed"; exit 1; }

bench-counters: ## The chip's counters for every kernel behind a target, once each, by Nsight Compute, as CSV
	ncu --clock-control none --csv --log-file counters.csv --metrics $(COUNTERS) \
	  -k 'regex:gemm|multiply_ahead|_norm_quant|_grouped|flash|Prefill|_silu' $(PYTHON) -m kernels.bench once

bench: setup ## Measure the services on this machine and write JSON
	$(BIN)/tandem bench services --json bench.json

helm-test: setup ## The chart under real Helm 3 and 4: all presets and switches, schemas, rules, rendered commands
	$(BIN)/python tests/helm/fetch_tools.py .helm-tools
	$(PYTEST) tests/helm

constraints: setup ## Write which versions the images install, within pyproject.toml's bounds
	$(BIN)/python -m tests.helm.resolve_images

test-matrix: setup ## The long pairwise matrix of exact-token tests
	$(PYTEST) -m matrix

test-faults: setup ## Fault injection under load
	$(PYTEST) -m faults

clean: ## Remove the virtual environment and caches
	rm -rf $(VENV) .helm-tools .pytest_cache .mypy_cache .ruff_cache build *.egg-info
