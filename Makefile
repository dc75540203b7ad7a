# Everything runs in .venv, which each target makes when it is missing or older than pyproject.toml.
#
#   make demo        four simulated engines and the proxy in one process, round-robin against sticky
#   make test        the tests, with real llama.cpp engines behind the proxy
#   make check       what CI runs: format, lint, types, import floors, and `make test`
#   make bench       routing policies on simulated engines: a table and an HTML page
#   make test-slow   soaks of minutes, and every law tried on thousands of random examples; not in CI
#   make test-browser  the dashboard in headless Chromium
#   make test-real   the same promises in front of real vLLM servers (minutes, gigabytes; not in CI)
#   make wheel       the package with its hot modules compiled, in dist/ (needs a C compiler; some minutes)
#   make compiled    this git checkout with them, in build/compiled, for benches: half the CPU a request
#   make test-compiled  `make test` on that
#   make clean       forget .venv and every cache

PYTHON ?= $(shell for p in python3.11 python3 python3.12 python3.13; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { echo $$p; break; }; done)
VENV ?= .venv
BIN := $(VENV)/bin
PYTEST_ARGS ?=

.PHONY: demo test check lint format bench test-browser test-slow test-real wheel compiled test-compiled clean venv
.DELETE_ON_ERROR:

demo: $(VENV)/.with-core
	$(BIN)/stickyroute demo $(ARGS)

# Tests start many processes of ours; where no bytecode is kept, each would compile every module again.
test test-browser test-slow test-real: export PYTHONDONTWRITEBYTECODE =

test: $(VENV)/.with-test
	$(BIN)/pytest $(PYTEST_ARGS)

check: lint
	$(MAKE) test

lint: $(VENV)/.with-test,dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(VENV)/.with-test,dev
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: $(VENV)/.with-core
	$(BIN)/stickyroute bench $(ARGS)

test-slow: $(VENV)/.with-test
	$(BIN)/pytest -n 0 -m slow --timeout 900 $(PYTEST_ARGS)
	$(BIN)/pytest -m "hypothesis and not slow and not real" --timeout 900 --hypothesis-profile=thorough $(PYTEST_ARGS)

# Where there is no Chromium these are skipped, and it says so.
test-browser: $(VENV)/.with-test
	$(BIN)/pytest -n 0 -rs -m browser tests/control $(PYTEST_ARGS)

test-real: $(VENV)/.with-test
	$(BIN)/pytest -m real --timeout 900 tests/real tests/simulator $(PYTEST_ARGS)

wheel: | $(BIN)/python
	rm -f dist/stickyroute-*.whl
	@echo "compiling; this takes some minutes"
	HATCH_BUILD_HOOK_ENABLE_CUSTOM=1 $(BIN)/python -m pip wheel --quiet --disable-pip-version-check --no-deps --wheel-dir dist .

COMPILED := build/compiled
compiled: wheel
	rm -rf $(COMPILED) && mkdir -p $(COMPILED)
	git ls-files -z | xargs -0 cp --parents --target-directory $(COMPILED)
	$(BIN)/python -m zipfile -e dist/stickyroute-*.whl $(COMPILED)

# Every process that a test starts is to find the compiled modules too, before the editable install.
test-compiled: compiled $(VENV)/.with-test
	cd $(COMPILED) && PYTHONPATH=$(CURDIR)/$(COMPILED) $(abspath $(BIN))/pytest \
		-m "not interpreted and not slow and not real and not browser" $(PYTEST_ARGS)

venv: $(VENV)/.with-test,dev

clean:
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(BIN)/python:
	@test -n "$(PYTHON)" || { echo "stickyroute needs Python 3.11 or newer; none was found (set PYTHON=...)"; exit 1; }
	$(PYTHON) -m venv $(VENV)

# One stamp for each extra, so that `make demo` waits for no test or lint package. Installing some extras installs
# the core with them, so their stamps are set together.
COMMA := ,
$(VENV)/.with-core: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable .
	@touch $@

$(VENV)/.with-%: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable ".[$*]"
	@touch $@ $(VENV)/.with-core $(addprefix $(VENV)/.with-,$(subst $(COMMA), ,$*))
