# Two commands: `make quickstart` and `make test`. Everything else is for developers.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt
RUNTIME := $(VENV)/.runtime
STAMP := $(VENV)/.installed
DOCS := $(VENV)/.docs
JOBS ?= 2
SEED ?= 0
export TOKENIZERS_PARALLELISM := false

.PHONY: quickstart test test-page chromium bubblewrap check lint types format index pages methods docs examples fuzz mutants clean

# what a run needs, and nothing else
$(RUNTIME): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "posttrain needs Python 3.11 or newer, this is $$($(PYTHON) --version); try make PYTHON=python3.12"; exit 1; }
	@test -d $(VENV) || $(PYTHON) -m venv $(VENV) || \
	  { echo "cannot make a virtual environment; on Debian or Ubuntu: apt-get install python3-venv"; exit 1; }
	@echo "installing torch and friends into $(VENV), about a minute ..."
	@$(PIP) -e .
	@touch $(RUNTIME)

# and what tests need besides
$(STAMP): $(RUNTIME)
	@echo "installing the tools for tests ..."
	@$(PIP) -e '.[dev]'
	@# reasoning-gym depends on a package that must be compiled; without a compiler its tests are skipped
	@if command -v cc >/dev/null; then $(PIP) -e '.[dev,reasoning-gym]' || \
	  echo "note: reasoning-gym could not be installed; its tests will be skipped"; fi
	@touch $(STAMP)

quickstart: $(RUNTIME)
	$(BIN)/posttrain run grpo --task word_problems --name quickstart --seed $(SEED) --sampling.max-tokens 48 --fresh

# kernels are tested in Triton's interpreter; builds of torch for CPUs come without Triton, and elsewhere than on Linux there is none
KERNELS := $(VENV)/.kernels
$(KERNELS): $(STAMP)
	@$(BIN)/python -c 'import triton' 2>/dev/null || $(BIN)/pip install --quiet --disable-pip-version-check triton==3.9.0 || \
	  echo "note: Triton could not be installed; the tests of its kernels will be skipped"
	@touch $(KERNELS)

test: $(STAMP) $(KERNELS)
	$(BIN)/python -m pytest -n $(JOBS) --dist loadfile --no-loadscope-reorder

# the page in a real browser; screenshots in build/page
test-page: $(STAMP) chromium
	PAGE_TESTS=must $(BIN)/python -m pytest tests/page

chromium:
	@command -v chromium >/dev/null || command -v chromium-browser >/dev/null || command -v google-chrome >/dev/null || { \
	  echo "installing chromium ..."; as=$$(test "$$(id -u)" = 0 || command -v sudo || true); \
	  { $$as apt-get update -qq && $$as apt-get install -qq -y --no-install-recommends chromium >/dev/null; } || \
	  echo "note: chromium could not be installed; the page is not tested in a browser"; }

bubblewrap:
	@test "$$(uname)" != Linux || command -v bwrap >/dev/null || { \
	  echo "installing bubblewrap ..."; as=$$(test "$$(id -u)" = 0 || command -v sudo || true); \
	  { $$as apt-get update -qq && $$as apt-get install -qq -y --no-install-recommends bubblewrap >/dev/null; } || \
	  echo "note: bubblewrap could not be installed; the sandbox is not tested"; }

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(STAMP)
	$(BIN)/mypy

check: lint types test

format: $(STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

index: $(STAMP)
	$(BIN)/python -m posttrain.view.index

pages methods: index
	$(BIN)/python -m posttrain.view.methods_page

$(DOCS): $(RUNTIME)
	@echo "installing mkdocs-material ..."
	@$(PIP) -e '.[docs]'
	@touch $(DOCS)

docs: $(DOCS)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "open site/index.html, or: $(BIN)/mkdocs serve"

# each example with three seeds, and the number it should end at
examples: $(RUNTIME)
	@$(PIP) -e '.[control]'
	$(BIN)/python -m examples.run --seeds 3

# random settings, data, rewards, model folders, run folders and requests; the same seed tries the same things
FUZZ_MINUTES ?= 10
fuzz: $(STAMP)
	$(BIN)/python -m tests.fuzz --minutes $(FUZZ_MINUTES) --seed $(SEED)

# wrong changes, one at a time, to a copy: do the tests notice at least 95% of them?
mutants: $(STAMP)
	$(BIN)/python -m tests.mutants --jobs $(JOBS)

clean:
	rm -rf $(VENV) build site *.egg-info .pytest_cache .mypy_cache .ruff_cache
