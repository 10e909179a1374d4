# Everything runs in .venv, which needs only python3 (3.11 or newer) and its venv module.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
READY := $(VENV)/.ready
DOCS_READY := $(VENV)/.docs

.PHONY: demo test test-rest test-all lint check docs bench fuzz clean

## demo: write a demo trace, print its tables, write report.xlsx
demo: $(INSTALLED)
	$(BIN)/tracelens-ext demo demo/trace.json.gz --force
	$(BIN)/tracelens-ext report demo/trace.json.gz -o report.xlsx

## test: the tests that need this folder only and start no process, few examples of each property
## (a minute or a little more on two cores)
PYTEST := PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest --numprocesses logical --maxprocesses 8 --dist worksteal
test: $(READY)
	$(PYTEST) --hypothesis-profile 'few examples' -m 'not process and not real_data and not slow'

## test-rest: the tests that `test` leaves out and that this machine can run, and more examples
## (one at a time more than cores: some wait for what they start)
test-rest: $(READY)
	$(PYTEST) --numprocesses $$(expr $$(getconf _NPROCESSORS_ONLN) + 1) -m 'process or real_data or slow or hypothesis'

## test-all: every test that this machine can run
test-all: test test-rest

## lint: style, types, and which package may import which
lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/python .ci/check_plain_code.py
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache --no-logo

## check: lint and test
check: lint test

## docs: the documentation as a site, in the folder site; a broken link is an error
docs: $(DOCS_READY)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

## bench: time and memory against a fixed yardstick (minutes; needs about 2 GB of disk)
bench: $(READY)
	$(BIN)/python benchmarks/bench.py

## fuzz: damaged traces, rules and databases for FUZZ_SECONDS, and traces through both readers of
## PyTorch's JSON for as long again; what is found stays in fuzz/findings
FUZZ_SECONDS ?= 300
fuzz: $(READY)
	$(BIN)/python -c 'import atheris' 2>/dev/null || $(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[fuzz]'
	$(BIN)/python fuzz/native.py --seconds $(FUZZ_SECONDS) || [ $$? = 2 ]
	$(BIN)/python fuzz/run.py --seconds $(FUZZ_SECONDS)

## What a user installs; the tools of developers come on top with the first target that needs them.
$(INSTALLED): pyproject.toml setup.py $(wildcard tracelens_ext/readers/*/_native.c)
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed: make PYTHON=python3.12")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade pip setuptools
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[html]'
	touch $@

$(READY): $(INSTALLED)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev,html]'
	touch $@

# The package is installed already: this adds what the documentation needs and leaves it alone.
$(DOCS_READY): $(INSTALLED)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check 'tracelens-ext[docs]'
	touch $@

clean:
	rm -rf $(VENV) build dist site *.egg-info demo report.xlsx tracelens_ext/readers/*/*.so
