# `make demo` and `make test` do all the set-up on a fresh machine with Python 3.11 and make.
PYTHON ?= python3.11
VENV := .venv
# The tiny pair's matrices are small: threads of BLAS and OpenMP only wait for each other.
export OMP_NUM_THREADS ?= 1
export OPENBLAS_NUM_THREADS ?= 1

.PHONY: demo test clean

$(VENV)/ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(VENV)/bin/pip install -qq --disable-pip-version-check -c constraints.txt torch
	$(VENV)/bin/pip install -qq --disable-pip-version-check -c constraints.txt -e '.[references,test,xla]'
	touch $@

demo: $(VENV)/ready
	$(VENV)/bin/parity demo

test: $(VENV)/ready
	$(VENV)/bin/pytest -n 2 --dist loadfile

clean:
	rm -rf $(VENV) .parity build *.egg-info
