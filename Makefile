# The one entry to the project. Every target sets up what it needs; a second run has nothing to set up.

PYTHON ?= python3
BIN := .venv/bin

# What the checkers read; a folder counts once it exists.
CODE := $(wildcard platform/lockstep assets jobs sensors definitions.py tests tools benchmarks)

# Where Rust is, its own checkers look at the extension.
RUST = $(shell cargo fmt --version >/dev/null 2>&1 && cargo clippy --version >/dev/null 2>&1 && echo native/Cargo.toml)

# The parts of the slow tests. 1: prover, properties and whatever is in no other part; 2: kills, disks, cluster, state;
# 3: Dagster, live platform, tutorial, benchmarks.
NIGHTLY_2 := $(addprefix tests/,faults integration/cluster unit/state)
NIGHTLY_3 := $(addprefix tests/,house integration/cli features/localdev integration/orchestration integration/security \
	streams/tutorial)
NIGHTLY_1 := $(filter-out $(NIGHTLY_2) $(NIGHTLY_3) tests/faults/% tests/house/%,$(patsubst %/,%,$(sort $(dir \
	$(wildcard tests/*/*/test_*.py)))))

# Without the caches of Python each worker and each process of the tests compiles the library again.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help setup environment java demo up down kafka gameday test test-nightly test-all mutants check bench wheels release-check lock clean

help: ## Show this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | awk -F '\t' '{printf "  make %-13s %s\n", $$1, $$2}'

setup: ## Make .venv, lockstep-native and the archives of Java (every other target makes what it needs of these first)
	@PYTHON="$(PYTHON)" sh tools/setup.sh

environment:
	@PYTHON="$(PYTHON)" sh tools/setup.sh environment

java:
	@PYTHON="$(PYTHON)" sh tools/setup.sh java

demo: java ## Recorded order books through Kafka, Dagster, Spark and Delta, with a kill -9 on the way
	@$(BIN)/python -m lockstep.features.localdev.demo .

up: java ## A live platform to look at: Kafka, the Dagster UI, a feed (SPEED=30 messages/s), all streams
	@$(BIN)/python -m lockstep.features.localdev.platform up . $(if $(SPEED),--speed $(SPEED))

down: ## End what `make up` started; its tables stay
	@test ! -x $(BIN)/python || $(BIN)/python -m lockstep.features.localdev.platform down .

kafka: java ## Only Kafka, for streams of your own (lockstep run), until Ctrl-C; its topics stay in .kafka
	@exec $(BIN)/lockstep kafka

gameday: java ## Random faults on a live platform of its own, then a proof of every stream (MINUTES=5 SEED=7 HOST=1)
	@$(BIN)/python -m lockstep.features.rehearsal.game_day . $(if $(MINUTES),--minutes $(MINUTES)) $(if $(SEED),--seed $(SEED)) $(if $(HOST),--host)

test: setup ## The tests that guard each change, in parallel (WORKERS=1: one after another)
	@$(BIN)/python -m pytest -m "not slow" -n $(or $(WORKERS),auto) --ignore=tests/house/rules

test-nightly: setup ## The slow tests, all or one of three parts (PART=2); a test that cannot run here fails
	$(if $(filter 1 2 3,$(or $(PART),1)),,$(error PART=$(PART) is none of 1, 2, 3))
	@$(BIN)/python -m pytest -m slow -n $(or $(WORKERS),auto) $(NIGHTLY_$(PART))

test-all: setup ## Every test, in parallel, with more generated examples
	@$(BIN)/python -m pytest --hypothesis-profile thorough -n $(or $(WORKERS),auto)

mutants: setup ## Take a rule out of the library at a time; its near tests must fail (nightly; ONLY=planner, WORKERS=1)
	@$(BIN)/python -m tests.house.mutants $(if $(ONLY),--only "$(ONLY)") $(if $(WORKERS),--workers $(WORKERS))

check: environment ## Lint, format, types, and the house rules
	@$(BIN)/ruff check $(CODE)
	@$(BIN)/ruff format --check $(CODE)
	@$(BIN)/mypy $(CODE)
	@$(BIN)/basedpyright
	$(if $(RUST),@cargo fmt --check --manifest-path $(RUST) && cargo clippy --quiet --manifest-path $(RUST) -- -D warnings)
	@$(BIN)/python tools/style_ratchet.py
	@$(BIN)/python -m pytest -q tests/house/rules

bench: setup ## lockstep against bare loops, in pairs within one run, two minutes; the others: .venv/bin/python -m benchmarks --help
	@$(BIN)/python -m benchmarks pairs

wheels: setup ## Build the wheels that users install into dist: lockstep, and lockstep-native for x86_64 and aarch64
	@$(BIN)/python tools/wheels.py

release-check: setup ## Build wheel and sdist, install the wheel elsewhere in an empty home, run a first stream there
	@$(BIN)/python tools/release_check.py

lock: ## Renew requirements.lock and requirements-runtime.lock from pyproject.toml (for maintainers)
	@PYTHON="$(PYTHON)" sh tools/setup.sh --lock

clean: down ## Remove what make made here (the caches in your home folder stay)
	@rm -rf .venv .tools native/target native/Cargo.lock .demo .live .kafka .gameday .mypy_cache .pytest_cache .ruff_cache .hypothesis spark-warehouse
