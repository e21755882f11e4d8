# The commands of this repository. Everything runs in a virtual environment that the Makefile makes from constraints.txt.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
# Files of tests are shared out to as many processes, each on one thread.
WORKERS ?= 2
PIP    := $(BIN)/python -m pip install --quiet -c constraints.txt

# The suite and the demo make everything they need; a hub is never asked.
export HF_HUB_OFFLINE ?= 1
export TOKENIZERS_PARALLELISM = false

.DEFAULT_GOAL := help
.PHONY: help demo test test-slow coverage lint types layers check bench notebook docs pictures dist clean

help:  ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-10s %s\n", $$1, $$2}'

# One stamp per set of extras: a second `make` with the same files installs nothing.
$(VENV)/.installed-%: setup.cfg constraints.txt
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "installing qsft[$*] into $(VENV) ..."
	@$(PIP) --upgrade pip setuptools wheel
	@# torch first: packages that build against it must find it, and a bare range would pull the CUDA build
	@$(PIP) torch
	@PYTHONWARNINGS="ignore:Editable installation" $(PIP) -e ".[$*]"
	@touch $@

demo: $(VENV)/.installed-demo  ## the paper's effect in minutes, no download (ARGS="--seeds 3")
	$(BIN)/qsft demo $(ARGS)

test: $(VENV)/.installed-test  ## the suite without the slow tests
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile $(ARGS)

test-slow: $(VENV)/.installed-test  ## the tests that take minutes
	$(BIN)/python -m pytest -m slow $(ARGS)

coverage: $(VENV)/.installed-test  ## the maths and the two losses are covered to 98 %
	$(BIN)/python -m pytest -n $(WORKERS) tests/targets tests/losses --cov=qsft.targets --cov=qsft.losses.reference \
	  --cov=qsft.losses.fused --cov=qsft.losses.sums --cov-report=term --cov-fail-under=98

lint: $(VENV)/.installed-dev  ## ruff: style and format
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.installed-dev  ## mypy: strict where the maths is
	$(BIN)/mypy

layers: $(VENV)/.installed-dev  ## import-linter: rooms depend downward only
	$(BIN)/lint-imports --config setup.cfg

check: lint types layers test  ## what a commit must pass

bench: $(VENV)/.installed-test  ## ratios against TRL and bare matmuls, in one run (CPU figures)
	$(BIN)/python -m benchmarks $(ARGS)

notebook: $(VENV)/.installed-notebook  ## run notebooks/quickstart.ipynb from top to bottom
	@# in a directory of its own, because a notebook runs and writes where it lies
	rm -rf $(VENV)/notebook && mkdir -p $(VENV)/notebook && cp notebooks/quickstart.ipynb $(VENV)/notebook/
	$(BIN)/python -m nbconvert --to notebook --execute --inplace $(VENV)/notebook/quickstart.ipynb

docs: $(VENV)/.installed-test  ## write the generated parts of the README anew
	$(BIN)/python tests/readme.py --write

pictures: $(VENV)/.installed-test  ## take the README's pictures anew, from the demo (needs chromium)
	rm -rf $(VENV)/pictures && mkdir -p $(VENV)/pictures docs
	$(BIN)/qsft demo --out $(VENV)/pictures/demo && cp $(VENV)/pictures/demo/accuracy.png docs/demo.png
	cd $(VENV)/pictures && ../bin/qsft explore targets --out targets.html && \
	  ../bin/qsft explore tokens demo --n 12 --out tokens.html && \
	  ../bin/qsft explore alignment demo --n 200 --out alignment.html && \
	  ../bin/qsft train demo --logging_steps 2 --output_dir run && ../bin/qsft explore run run --out run.html && \
	  ../bin/python -m qsft.explore.pictures targets.html "tokens.html#token-15" alignment.html run.html --out ../../docs

dist: $(VENV)/.installed-dev  ## build, check and try the wheel in a clean environment
	rm -rf dist build
	$(BIN)/python -m build --quiet
	$(BIN)/twine check --strict dist/*
	PYTHON=$(PYTHON) bash tests/try_wheel.sh dist/*.whl

clean:  ## remove the environment and what was built
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
