# Every target sets itself up: a machine with Python 3.11 or newer and make is enough.
#
#   make demo      train, be killed in the middle of a save, resume, and show that nothing differs
#   make test      the whole test suite, without the deep exploration
#   make quick     the tests that need seconds: nothing is killed, mounted or served
#   make lint      style, types, the floors, and whether spec/ still says what the code does
#   make coverage  every branch of transitions/ is reached by tests/transitions alone
#   make bench     measure, against peers where they are installed
#   make fuzz      everything, with examples that no run has tried before
#   make clean     remove the environment and everything that was built

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
INSTALL = $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

.PHONY: demo test quick lint coverage bench fuzz clean
.DELETE_ON_ERROR:

demo: $(VENV)/.core
	$(BIN)/milepost demo

# Two halves at once: what explores in one process, which needs a core, and what waits for processes and servers.
EXPLORING := $(addprefix tests/,applications archive checkpoints crash damage direct direct_runs fence log sampling)
define halves
	@$(BIN)/python -m pytest -m $(1) $(EXPLORING) >.exploring.txt 2>&1 & \
	$(BIN)/python -m pytest -m $(1) $(EXPLORING:%=--ignore=%); others=$$?; \
	wait $$!; exploring=$$?; cat .exploring.txt; \
	exit $$((others | exploring))
endef

test: $(VENV)/.test
	$(call halves,"not fuzz")

quick: $(VENV)/.test
	$(call halves,"not (kills or services or slow or fuzz)")

lint: $(VENV)/.test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy -p milepost
	$(BIN)/lint-imports
	$(BIN)/python spec/generate.py --check

coverage: $(VENV)/.test
	$(BIN)/coverage run --branch --source=transitions -m pytest -q tests/transitions
	$(BIN)/coverage report --show-missing --skip-covered --fail-under=100

bench: $(VENV)/.bench
	$(BIN)/python -m benchmarks

fuzz: $(VENV)/.test
	HYPOTHESIS_PROFILE=fuzz $(BIN)/python -m pytest --timeout=7200

clean:
	rm -rf $(VENV) build dist src/*.egg-info .coverage .exploring.txt .hypothesis
	rm -rf .pytest_cache .mypy_cache .ruff_cache .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# A stamp is newer than what it was installed from, or it is made again.

$(BIN)/python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "needs Python 3.11 or newer: make PYTHON=…")'
	$(PYTHON) -m venv $(VENV)

$(VENV)/.core: pyproject.toml constraints.txt | $(BIN)/python
	$(INSTALL) -e .
	touch $@

$(VENV)/.test: $(VENV)/.core
	$(INSTALL) -e '.[test]'
	touch $@

$(VENV)/.bench: $(VENV)/.core
	$(INSTALL) -e '.[bench]'
	touch $@
