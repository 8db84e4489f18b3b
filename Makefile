# Set-up happens once: .venv/.installed is newer than the files that describe it.
PYTHON := .venv/bin/python
STAMP := .venv/.installed
RUN ?= runs/digits
TRAIN_FLAGS ?=
ENGINE ?= $(shell for name in podman buildah docker; do command -v $$name && break; done)
TARGET ?= cpu
VERSION = $(shell sed -n 's/^__version__ = "\(.*\)"/\1/p' tfdist/__init__.py)
IMAGE ?= tfdist:$(VERSION)$(if $(filter gpu,$(TARGET)),-gpu)

.PHONY: setup train image locks test durations lint format chaos conformance fuzz bits matrix docs release clean

setup: $(STAMP)

# python3 may be older than 3.11, newer than TensorFlow's wheels, or lack ensurepip (Debian).
$(STAMP): setup.cfg pyproject.toml
	@if [ ! -x $(PYTHON) ]; then \
	  for candidate in python3.12 python3.11 python3.13 python3 python; do \
	    if $$candidate -c 'import sys, venv, ensurepip; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' 2>/dev/null; then \
	      found=$$candidate; break; \
	    fi; \
	  done; \
	  if [ -z "$$found" ]; then \
	    echo "make: no Python 3.11 to 3.13 with venv on PATH; install one (Debian: apt install python3 python3-venv)" >&2; exit 2; \
	  fi; \
	  "$$found" -m venv .venv || exit 1; \
	fi
	$(PYTHON) -m pip install --quiet --disable-pip-version-check -e '.[dev,plots]'
	@touch $@

train: $(STAMP)
	.venv/bin/tfdist launch --workers 2 -- .venv/bin/tfdist train --strategy multi_worker_mirrored --dataset digits --output-dir $(RUN) $(TRAIN_FLAGS)

# The container image: make image [TARGET=gpu] [IMAGE=registry.example.com/tfdist:0.1.0]
image:
	@if [ -z "$(ENGINE)" ]; then echo "make: no podman, buildah or docker on PATH; install one, or give ENGINE=..." >&2; exit 2; fi
	$(ENGINE) build --target $(TARGET) --tag $(IMAGE) .

# What the images are made of, with the newest versions that setup.cfg allows. Needs Python 3.11.
locks: $(STAMP)
	$(PYTHON) container/lock.py tensorflow-cpu > container/cpu.new && mv container/cpu.new container/cpu.txt
	$(PYTHON) container/lock.py 'tensorflow[and-cuda]' > container/gpu.new && mv container/gpu.new container/gpu.txt

# In three sessions, as many tests wait for processes; tests/conftest.py orders them.
test: $(STAMP)
	$(PYTHON) -m pytest -n 3 --dist loadfile --no-loadscope-reorder --junitxml build/tests.xml

# Keeps how long each file took in the last `make test`: tests/durations.tsv.
durations:
	$(PYTHON) -m tests.durations build/tests.xml

# The full figures: see docs/chaos.md. Without TFDIST_CHAOS, as in `make test`, a short selection.
chaos: $(STAMP)
	TFDIST_CHAOS=full $(PYTHON) -m pytest -m chaos -s --durations=0

# All features, programs and Keras' own tests under every strategy, by either transport, of which
# `make test` has a selection.
conformance: $(STAMP)
	TFDIST_CONFORMANCE=full $(PYTHON) -m pytest tests/training/test_conformance.py \
	  tests/training/test_programs.py tests/training/keras_suite
	TFDIST_CONFORMANCE=full $(PYTHON) -m pytest -m "long and not chaos"
	TFDIST_CONFORMANCE_TRANSPORT=tensorflow $(PYTHON) -m pytest tests/training/test_conformance.py -k multi_worker

# Drawn programs, compared with plain Keras on one device and on two replicas, and programs that mix
# rows, of which two replicas have to warn: make fuzz N=200
fuzz: $(STAMP)
	TFDIST_FUZZ=$(or $(N),100) $(PYTHON) -m pytest -q tests/training/test_property.py \
	  tests/training/rehearsal/test_drawn.py

# Whether every number is the same as with the code of another revision: make bits BASE=main
bits: $(STAMP)
	$(PYTHON) -m tests.training.conformance.same_bits $(BASE)

# Quick tests with each version of Python, TensorFlow and Keras; make matrix MATRIX='--keras 3.14'
matrix: $(STAMP)
	$(PYTHON) -m tests.matrix $(MATRIX)

# The documentation as a site, in site/; a link that leads nowhere is an error. (Not with --quiet,
# with which mkdocs counts no warnings.)
docs: .venv/.docs
	NO_MKDOCS_2_WARNING=1 $(PYTHON) -m mkdocs build --strict

.venv/.docs: $(STAMP)
	$(PYTHON) -m pip install --quiet --disable-pip-version-check -e '.[docs]'
	@touch $@

# What a release is: dist/, checked, and each file of it installed into an empty environment, where it
# trains a step. Nothing is uploaded; a tag v* does that (.github/workflows/release.yml).
release: $(STAMP)
	@if [ -n "$$(git status --porcelain)" ]; then echo "make: commit first; a release is what is committed" >&2; exit 2; fi
	rm -rf dist build/release
	$(PYTHON) -m build --outdir dist .
	$(PYTHON) -m twine check --strict dist/*
	for file in dist/*; do \
	  rm -rf build/release && $(PYTHON) -m venv build/release && \
	  build/release/bin/python -m pip install --quiet --disable-pip-version-check $$file && \
	  (cd build/release && env -u PYTHONPATH bin/tfdist --version && bin/tfdist check && bin/tfdist train --smoke) \
	    || exit 1; \
	done

lint: $(STAMP)
	$(PYTHON) -m ruff check .
	$(PYTHON) -m ruff format --check .
	$(PYTHON) -m mypy

format: $(STAMP)
	$(PYTHON) -m ruff check --fix .
	$(PYTHON) -m ruff format .

clean:
	rm -rf .venv build dist site *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis runs
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
