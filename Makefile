# The commands of this project. `make run` and `make test` need nothing but git, make, g++ and Python:
# tools/bootstrap.sh brings the rest and is a no-op once it is there.

ARGS ?=
FUZZ_SECONDS ?= 60
export PATH := $(CURDIR)/.venv/bin:$(PATH)
export PYTHONPATH := $(CURDIR)/python
export NO_COLOR ?= 1
python := .venv/bin/python

.DEFAULT_GOAL := help
.PHONY: help run test test-long test-matrix lint format stubs bench fuzz dev environment clean

help: ## This list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' Makefile | expand -t 22

run: dev ## Builds, then the main job: a model under a budget smaller than its weights (ARGS="--budget 60MiB --json")
	@$(python) -m noria run $(ARGS)

test: dev ## Every test, with a tenth of the random seeds (ARGS goes to pytest)
	@$(python) tools/run_tests.py $(ARGS)

test-long: export NORIA_LONG := 1
test-long: dev ## Every test with all seeds, the sanitizers, and the tests marked long
	@$(python) tools/run_tests.py $(ARGS)

test-matrix: environment ## Builds and tests against each supported torch, in environments of their own (several GB)
	@tools/test_matrix.sh

lint: dev ## Every check that needs no run of the code; warnings are errors
	@$(python) tools/lint.py $(ARGS)

format: environment ## Formats C++ and Python, and applies the fixes that ruff is sure of
	@$(python) tools/format.py

stubs: dev ## Writes python/noria/_C.pyi from the extension that was built
	@$(python) tools/stubs.py

bench: environment ## Every benchmark, on a release build; JSON goes to build/bench-results
	@tools/bench.sh $(ARGS)

fuzz: environment ## Each fuzz target for FUZZ_SECONDS (60)
	@FUZZ_SECONDS=$(FUZZ_SECONDS) tools/fuzz.sh

dev: environment ## Builds, and leaves the extension in python/noria
	@tools/build.sh dev

environment: ## Debian packages and .venv
	@tools/bootstrap.sh

clean: ## Removes what builds and tests left, not .venv
	rm -rf build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
	rm -f python/noria/*.so python/noria/*.so.*
	find python tests tools bench -name __pycache__ -type d -prune -exec rm -rf {} +
