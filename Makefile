# Make creates the virtual environment that all targets use: `make up` works on a fresh clone.
# PYTHON is the interpreter that creates it, VENV its path.
PYTHON ?= python3
VENV ?= .venv
UV ?= $(if $(wildcard $(VENV)/bin/uv),$(VENV)/bin/uv,uv)

BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
PIP := $(BIN)/python -m pip --quiet --disable-pip-version-check
TESTS ?= tests
# Most tests wait for processes; five files at a time keep two cores busy. JOBS=0 runs one at a time.
JOBS ?= 5
MINUTES ?= 10
PODS ?= local
SERVERS ?= single
# Each job has its own cluster.
KUBE_JOBS ?= 2
MINORS ?= 12 13 14

.DEFAULT_GOAL := help
.PHONY: help venv up check unit test test-pythons lint format bench bench-quick race fairness chaos soak drill proof mutants random-mutants test-kube test-node test-dist lock release sbom audit clean
.DELETE_ON_ERROR:

help: ## print this
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

venv: $(STAMP) ## set up the virtual environment

# The lock pins every package by hash; the server and the client are installed in place, with the
# build tool from the lock.
$(STAMP): requirements.lock pyproject.toml clientdist/pyproject.toml
	@command -v $(PYTHON) >/dev/null || { echo "make: no $(PYTHON): install Python 3.11 or newer, or set PYTHON" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "make: $(PYTHON) is too old: Python 3.11 or newer is needed; set PYTHON to one" >&2; exit 1; }
	@$(PYTHON) -c 'import venv, ensurepip' 2>/dev/null || { echo "make: $(PYTHON) has no venv module: install it (on Debian and Ubuntu: python3-venv)" >&2; exit 1; }
	@test -x $(BIN)/python || { echo "make: creating $(VENV)"; $(PYTHON) -m venv $(VENV); }
	@echo "make: installing the locked packages (a minute or two the first time)"
	@$(PIP) install --require-hashes -r requirements.lock
	@$(PIP) install --no-deps --no-build-isolation -e clientdist
	@$(PIP) install --no-deps --no-build-isolation -e .
	@touch $@

up: $(STAMP) ## start everything on this machine: broker, database, workers
	@$(BIN)/warmpool up

# Bytecode is kept in any shell: compiling the tests takes a runner longer than importing them.
check unit test test-pythons test-dist test-kube test-node: export PYTHONDONTWRITEBYTECODE :=

check: ## lint, and the unit tests with a tenth of their examples: for every commit, 20 s at most
	@$(MAKE) --no-print-directory --jobs=2 --output-sync lint unit

unit: $(STAMP)
	@echo "make: unit tests" && WARMPOOL_TEST_QUICK=1 $(BIN)/python -m pytest -q -o timeout_method=signal tests/unit

# Each Python has its own environment in build/. One that is not installed is left out.
test-pythons: ## run the unit tests and the client's tests on every newer Python that is installed
	@for minor in $(MINORS); do \
		found=$$(command -v python3.$$minor) && $$found -c '' 2>/dev/null || \
			found=$$(ls -d $$HOME/.pyenv/versions/3.$$minor.*/bin/python 2>/dev/null | tail -n 1); \
		test -n "$$found" || { echo "make: no python3.$$minor: its tests are left out"; continue; }; \
		echo "make: $$($$found --version)"; \
		$(MAKE) --no-print-directory venv VENV=build/python3.$$minor PYTHON=$$found && \
		build/python3.$$minor/bin/python -m pytest -q tests/unit tests/integration/test_client_wheel.py tests/integration/test_client_wire.py || exit 1; \
	done

test: $(STAMP) ## run the tests that need only this machine (TESTS=tests/unit for a part)
	@$(BIN)/python -m pytest -n $(JOBS) --dist loadgroup --no-loadscope-reorder --durations=15 --durations-min=10 $(TESTS) --ignore=tests/kube --ignore=tests/node --ignore=tests/dist

lint: $(STAMP) ## check style, types and the layers
	@echo "make: ruff" && $(BIN)/ruff check --quiet . && $(BIN)/ruff format --check --quiet .
	@echo "make: mypy" && $(BIN)/mypy --no-error-summary
	@echo "make: import-linter" && $(BIN)/lint-imports

format: $(STAMP) ## format the code
	@$(BIN)/ruff check --fix --quiet . ; $(BIN)/ruff format .

bench: $(STAMP) ## measure, each number against a limit of the same run; writes docs/performance.md
	@$(BIN)/python -m bench --docs docs

bench-quick: $(STAMP) ## the same in a few minutes with wider limits; writes nothing
	@$(BIN)/python -m bench --quick

race: $(STAMP) ## 10,000 acquires from 16 client processes; fails if a worker ever has two holders
	@$(BIN)/python -m bench.race

fairness: $(STAMP) ## share a full pool among orgs that always wait and print each one's share (ORGS="a=1 b=2 c=3" CAP=4)
	@$(BIN)/python -m bench.fairness --cap $(or $(CAP),4) $(ORGS)

chaos: $(STAMP) ## seeded faults on the real system (SEED=1 MINUTES=10 PODS=kubernetes SERVERS=replicated); without SEED also lock losses
	@$(BIN)/python -m tests.chaos --seed $(or $(SEED),1) --minutes $(MINUTES) --pods $(PODS) --servers $(SERVERS)
	$(if $(SEED),,@WARMPOOL_TEST_LONG=1 $(BIN)/python -m pytest -s tests/faults/test_lock_losses.py tests/faults/test_outages.py tests/faults/test_failing_pass.py)

soak: $(STAMP) ## steady load for half an hour; memory, connections and tables must stay flat
	@$(BIN)/python -m tests.soak

drill: $(STAMP) ## break a running pool in four ways; board, status and an alert must show each (five minutes)
	@WARMPOOL_TEST_LONG=1 $(BIN)/python -m pytest -s -p no:logging tests/faults/test_drill.py

proof: $(STAMP) ## every crash point, pairs of verbs in all orders, 100,000 hostile messages, the model
	@WARMPOOL_TEST_LONG=1 WARMPOOL_MODEL=$(or $(MODEL),ci) $(BIN)/python -m pytest -s tests/faults/test_crash_points.py tests/faults/test_pairs.py tests/faults/test_message_fuzzer.py tests/faults/test_hostile_neighbours.py tests/faults/test_redis_failover.py tests/model

# PROMISE selects promises, KUBE=1 mutants that need a cluster, QUICK=1 those whose tests start no pool,
# EVERY=2 every second one.
mutants: $(STAMP) ## break each promise in a copy of the code; a test must fail (PROMISE="3 4" KUBE=1 QUICK=1 EVERY=2)
	@$(BIN)/python -m tests.mutants --jobs $(or $(MUTANT_JOBS),2) $(if $(PROMISE),--promise $(PROMISE)) $(if $(KUBE),--kube) $(if $(QUICK),--quick) $(if $(EVERY),--every $(EVERY))

# ROOM="store tasks" selects rooms, PER_MODULE=10 the lines of each module of lifecycle, passes, store and
# tasks, ELSEWHERE=10 those of other modules, LIMIT_MIN=20 stops
# after 20 minutes and reports what has been tried, RECORD=tests/unit records again what these tests call.
random-mutants: $(STAMP) ## change random lines in a copy of the code; a test must fail (SEED=1 ROOM=store PER_MODULE=3)
	@nice -n 10 $(BIN)/python -m tests.mutants.random_lines --seed $(or $(SEED),1) --per-module $(or $(PER_MODULE),3) --elsewhere $(or $(ELSEWHERE),1) $(if $(ROOM),--room $(ROOM)) $(if $(LIMIT_MIN),--minutes $(LIMIT_MIN)) $(if $(RECORD),--record $(RECORD))

test-kube: $(STAMP) ## run the tests against a real Kubernetes API server
	@$(BIN)/python -m tests.support.kube_binaries >/dev/null
	@$(BIN)/python -m pytest -n $(KUBE_JOBS) --dist loadgroup tests/kube

test-node: $(STAMP) ## build the image, and install the chart on a real node of its own (needs root on Linux)
	@$(BIN)/python -m pytest -s tests/node

test-dist: $(STAMP) ## install the client from its wheel beside old and new Celery and redis, and use it (needs a package index)
	@$(BIN)/python -m pytest tests/dist

lock: ## choose the newest packages that fit pyproject.toml (needs uv)
	@command -v $(UV) >/dev/null || { echo "make: no uv: install it, or set UV" >&2; exit 1; }
	@$(UV) pip compile --quiet pyproject.toml --extra embedded --extra kubernetes --extra plots --group dev --universal --generate-hashes \
		--no-emit-index-url --no-emit-find-links --no-emit-package warmpool --upgrade --custom-compile-command "make lock" -o requirements.lock

release: $(STAMP) ## build wheels, sdists, chart, SBOM and checksums into build/release (VERSION=0.1.0; TAG=1 also tags the commit)
	@test -n "$(VERSION)" || { echo "make: which version? make release VERSION=$$(sed -n 's/^version = "\(.*\)"/\1/p' pyproject.toml)" >&2; exit 1; }
	@$(BIN)/python deploy/release.py $(VERSION) $(if $(TAG),--tag)

sbom: ## write the image's packages to build/sbom.json (CycloneDX), from the lock and without a network
	@mkdir -p build
	@$(PYTHON) deploy/sbom.py >build/sbom.json && echo "make: build/sbom.json"

audit: ## check the locked packages for known vulnerabilities (needs a network; not part of CI)
	@test -x build/audit/bin/pip-audit || { $(PYTHON) -m venv build/audit && build/audit/bin/python -m pip --quiet --disable-pip-version-check install pip-audit; }
	@build/audit/bin/pip-audit --strict --require-hashes --disable-pip -r requirements.lock

clean: ## remove generated files; data directories stay
	@rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
