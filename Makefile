# Everything a checkout needs; `make help` lists it. Nothing has to be installed by hand but
# Python 3.11 or later, make and a C compiler.

PYTHON ?=
ROWS ?= 3000000
SERVER ?= embedded
FORMAT ?= JSONEachRow
BENCH ?=
PYTEST ?=
PROCESSES ?= 4
SEEDS ?= 500
STEPS ?= 4000
FIRST_SEED ?= 1
MINUTES ?= 10
SEED ?= 1
MUTANTS ?= 300
LOCK ?=
SLOW ?=

BIN := .venv/bin
READY := .venv/.ready
MAKEFLAGS += --no-print-directory
# Tests start a thousand processes, and each would compile all of Sluice's modules again.
unexport PYTHONDONTWRITEBYTECODE
# Each process has servers of its own, and takes a whole file; files with slow tests come first.
PARALLEL = -n $(PROCESSES) --dist loadfile --no-loadscope-reorder

.DEFAULT_GOAL := help
.PHONY: help setup setup-tests demo test test-long test-all golden bench simulate chaos mutants check docs-site lock sbom size clean

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-12s %s\n", $$1, $$2}' Makefile

setup: $(READY)  ## everything that demo and bench need: packages, Java, Kafka

$(READY): requirements.lock requirements-tests.lock pyproject.toml setup.py sluice/kafka/wire/batches.c sluice/decode/messages/brackets.c sluice/decode/messages/quick_look.c sluice/decode/text/objects.c sluice/decode/schema/structure.c sluice/decode/envelope/walk.c sluice/claims/table.c scripts/setup
	@PYTHON="$(PYTHON)" scripts/setup
	@touch $@

setup-tests: $(READY)  ## what only the tests need: ClickHouse 18.16, ZooKeeper and Redis from Debian
	@scripts/setup-tests

demo: $(READY)  ## a million rows through kills and restarts, each audited
	@$(BIN)/sluice demo

test: setup-tests  ## all but the tests marked `slow` or `long`; SLOW=1 with those marked `slow`, as .ci/run; PYTEST="-k name" for some
	@$(BIN)/python -m pytest -m "not long$(if $(SLOW),, and not slow)" $(PARALLEL) $(PYTEST)

test-long: setup-tests  ## the tests marked `long`: variants of what others break; and four times as many examples
	@$(BIN)/python -m pytest -m "long or hypothesis or examples" --hypothesis-profile=long $(PARALLEL) $(PYTEST)

test-all: setup-tests  ## all of them, whatever the first ones find; before a release
	@status=0; $(MAKE) test SLOW=1 || status=1; $(MAKE) test-long || status=1; exit $$status

golden: $(READY)  ## write anew what every format makes of fixed messages (tests/golden) and of every type (docs/TYPES.md), after a change that is meant
	@$(BIN)/python -m tests.golden
	@$(BIN)/python -m tests.type_table

bench: $(READY)  ## rows/s and CPU per row; ROWS=3000000 SERVER=embedded|URL FORMAT=JSONEachRow BENCH="--rates 1000,10000"
	@$(BIN)/sluice bench --rows $(ROWS) --server $(SERVER) --format $(FORMAT) $(BENCH)

simulate: $(READY)  ## the loader in a world that breaks; SEEDS=500 STEPS=4000 FIRST_SEED=1
	@$(BIN)/sluice simulate --seeds $(SEEDS) --steps $(STEPS) --first-seed $(FIRST_SEED)

chaos: $(READY)  ## real faults on the real stack, every row compared; MINUTES=10 SEED=1
	@$(BIN)/sluice chaos --minutes $(MINUTES) --seed $(SEED)

mutants: setup-tests  ## the code broken in small ways, and what notices each; MUTANTS=300 SEED=1
	@$(BIN)/python -m tests.mutants --mutants $(MUTANTS) --seed $(SEED)

check: $(READY)  ## lint, format, strict types, definitions that nobody uses, layers, known vulnerabilities
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/vulture
	@$(BIN)/python -m pytest -q tests/test_layers.py tests/test_tidy.py
	@$(BIN)/python scripts/audit

docs-site:  ## the documentation as a site in .local/site, checked strictly; its packages are its own
	@test -x .local/docs-site/bin/mkdocs || $(or $(PYTHON),python3) -m venv .local/docs-site
	@.local/docs-site/bin/pip install -q mkdocs-material==9.8.2
	@NO_MKDOCS_2_WARNING=1 .local/docs-site/bin/mkdocs build --strict -q
	@echo "open .local/site/index.html"

lock: $(READY)  ## write the lock files again from pyproject.toml; LOCK="--upgrade" for newer versions
	@scripts/lock $(LOCK)

sbom: $(READY)  ## print what an installation consists of, as CycloneDX
	@$(BIN)/python scripts/sbom

size: $(READY)  ## lines and files of the package, of its parts, and of the loader alone
	@$(BIN)/python scripts/size

clean:  ## remove what set-up and tests made in this folder
	rm -rf sluice/kafka/wire/*.so sluice/decode/*/*.so sluice/claims/*.so .venv .local build .mypy_cache .ruff_cache .pytest_cache .hypothesis *.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
