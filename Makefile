# CI runs the same targets. No target needs a terminal. `make` alone lists them.
SHELL := /bin/sh
PYTHON ?= $(shell for p in python3 python3.14 python3.13 python3.12 python3.11; do \
	"$$p" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo "$$p" && break; done)
VERSIONS := 3.11 3.12 3.13 3.14
PORT ?= 8000
# The other installed Pythons that are supported: the wire tests run on them as well, in .venvs/py312 and so on.
OTHERS := $(filter-out $(shell $(PYTHON) -c 'import sys; print("%d.%d" % sys.version_info[:2])'),$(VERSIONS))
OTHERS := $(foreach version,$(OTHERS),$(if $(shell scripts/find-python $(version) 2>/dev/null),$(version)))
FRAMEWORKS := $(basename $(notdir $(wildcard requirements/frameworks/*.txt)))
PEERS := $(basename $(notdir $(wildcard requirements/peers/*.in)))
WIRE := tests/interaction tests/http tests/client
CHECKED := $(wildcard src tests examples benchmarks scripts)
PIP := -m pip install --quiet --disable-pip-version-check --no-input
PYTEST := -m pytest --quiet
# Two processes. The tests of one file stay together, because they share servers and peers.
PARALLEL := --numprocesses=2 --dist=loadfile

# Many images set it. The tests start 800 processes, and without byte code each of ours compiles the package again.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help setup setup-wire run explorer screenshots recording gallery test test-wire test-peers test-frameworks test-matrix chaos chaos-cluster check audit format bench bench-quick dist docs lock clean

help:  ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 14

# The environment of one framework is among them: `make test` runs all that `make test-frameworks` does with its agents.
setup: .venv/.stamp explorer/node_modules/.stamp .venvs/docs/.stamp .venvs/sdk03/.stamp .venvs/fasta2a/.stamp .venvs/js/.stamp .venvs/apcore-oldest/.stamp .venvs/framework-pydantic-ai/.stamp  ## create .venv and the small environments that tests need

setup-wire: $(OTHERS:3.%=.venvs/py3%/.stamp)

# One rule for each environment: the lock, then (where our own package runs) the package, editable.
.venv/.stamp: requirements/dev.txt pyproject.toml
	$(call install,.venv,$<)
	.venv/bin/python $(PIP) --no-deps --no-build-isolation --editable .
	@touch $@

# The environment of `make run`: what the package needs and nothing else, and the package from src. 70 MB.
.venvs/run/.stamp: requirements/run.txt
	$(if $(PYTHON),,$(no_python))
	scripts/light-venv $(PYTHON) .venvs/run $<
	@touch $@

# The same with the SDK of OpenTelemetry, for `make run TRACE=1`.
.venvs/trace/.stamp: requirements/trace.txt
	$(if $(PYTHON),,$(no_python))
	scripts/light-venv $(PYTHON) .venvs/trace $<
	@touch $@

.venvs/apcore-oldest/.stamp: requirements/apcore-oldest.txt pyproject.toml
	$(call install,.venvs/apcore-oldest,$<)
	.venvs/apcore-oldest/bin/python $(PIP) --no-deps --no-build-isolation --editable .
	@touch $@

.venvs/py3%/.stamp: requirements/dev.txt pyproject.toml
	$(call install,.venvs/py3$*,$<,$(shell scripts/find-python 3.$*))
	.venvs/py3$*/bin/python $(PIP) --no-deps --no-build-isolation --editable .
	@touch $@

.venvs/sdk03/.stamp: requirements/sdk03.txt
	$(call install,.venvs/sdk03,$<)
	@touch $@

.venvs/docs/.stamp: requirements/docs.txt
	$(call install,.venvs/docs,$<)
	@touch $@

.venvs/fasta2a/.stamp: requirements/fasta2a.txt
	$(call install,.venvs/fasta2a,$<)
	@touch $@

# The environments of `make test-peers`: one for each orchestrator of another project, 2.5 GB together.
.venvs/peer-%/.stamp: requirements/peers/%.txt
	$(call install,.venvs/peer-$*,$<)
	@touch $@

# The environments of `make test-frameworks`: one for each framework and version, with what our own package needs.
.venvs/framework-%/.stamp: requirements/frameworks/%.txt
	$(call install,.venvs/framework-$*,$<)
	@touch $@

# Without npm the tests against the JavaScript SDK are skipped, with a message.
.venvs/js/.stamp: requirements/js.npm
	@if command -v npm >/dev/null; then \
		mkdir -p .venvs/js && npm install --prefix .venvs/js --no-package-lock --no-audit --no-fund --silent $$(cat $<) && touch $@; \
	else echo "no npm: the JavaScript SDK is left out"; fi

# Tools to build the Explorer's page, needed only for changes of the page. Without npm its tests are skipped, with a message.
explorer/node_modules/.stamp: explorer/package-lock.json
	@if command -v npm >/dev/null; then npm ci --prefix explorer --silent && touch $@; \
	else echo "no npm: the Explorer's page is not rebuilt"; fi

# The servers of the benchmarks: one environment each, created when a benchmark needs it.
.venvs/bench-%/.stamp: benchmarks/peers/%.txt
	$(call install,.venvs/bench-$*,$<)
	@touch $@

.venvs/bench-js/.stamp: benchmarks/peers/js.npm
	mkdir -p .venvs/bench-js
	npm install --prefix .venvs/bench-js --no-package-lock --no-audit --no-fund --silent $$(cat $<)
	@touch $@

no_python = @echo "Python 3.11 or newer is needed on PATH (or: make $@ PYTHON=...)" >&2; exit 1

# arguments: environment, lock, and the Python to create it with, if not $(PYTHON)
define install
	$(if $(or $(3),$(PYTHON)),,$(no_python))
	test -x $(1)/bin/python || $(or $(3),$(PYTHON)) -m venv $(1)
	$(1)/bin/python $(PIP) --no-deps --require-hashes --requirement $(2)
endef

test: setup  ## tests with coverage, the adapters on the oldest apcore, and the coverage gate
	.venv/bin/python -m coverage erase
	.venv/bin/python -m coverage run $(PYTEST) $(PARALLEL)
	.venv/bin/python -m coverage combine --quiet
	@if [ -d tests/agents/apcore ]; then set -x; .venvs/apcore-oldest/bin/python $(PYTEST) tests/agents/apcore tests/remote; fi
	.venv/bin/python -m scripts.coverage_gate

test-wire: setup setup-wire  ## tests of behaviour that clients see, on the other installed Pythons, in parallel
	@echo "wire tests on the other installed Pythons: $(or $(OTHERS),none)"
	@$(if $(OTHERS),$(MAKE) --no-print-directory --jobs=2 --output-sync=target $(OTHERS:%=wire-on-%))

wire-on-3.%:
	.venvs/py3$*/bin/python $(PYTEST) -p no:cacheprovider $(WIRE)

test-peers: setup $(PEERS:%=.venvs/peer-%/.stamp)  ## orchestrators and servers of other projects, each in its own environment
	PEERS=required .venv/bin/python $(PYTEST) tests/peers

test-frameworks: setup $(FRAMEWORKS:%=.venvs/framework-%/.stamp) .venvs/peer-adk/.stamp .venvs/peer-strands/.stamp  ## agents of other frameworks, each at its newest and its oldest supported version; writes the table of docs/frameworks.md
	FRAMEWORKS=required .venv/bin/python $(PYTEST) $(PARALLEL) --junitxml=build/frameworks.xml tests/frameworks tests/toolkits/test_frameworks.py tests/agents/mcp; \
	status=$$?; .venv/bin/python -m tests.frameworks.report build/frameworks.xml; exit $$status

run: .venvs/$(if $(TRACE),trace,run)/.stamp  ## the demo agent with its Explorer page, at http://localhost:8000/explorer/ (make run PORT=9000; TRACE=1 prints a tree of spans for each request)
	PYTHONPATH=src .venvs/$(if $(TRACE),trace,run)/bin/python -m apcore_a2a serve examples/extensions --host 127.0.0.1 --port $(PORT) \
		--name demo --default-skill text.stats \
		--description "A demo agent: text, units, files, jobs, approvals" --explorer --metrics --reload \
		--push-notifications --allow-insecure-webhooks $(if $(TRACE),--otlp console)

explorer: explorer/node_modules/.stamp  ## build the Explorer's page from explorer/src into src/apcore_a2a/explorer/page.html
	cd explorer && npx --no-install tsc --noEmit && node build.mjs

screenshots: setup  ## pictures of every state of the Explorer, into build/screenshots
	.venv/bin/python -m scripts.screenshots build/screenshots

recording: setup  ## the commands of the README at a terminal, drawn into docs/images/terminal.svg
	.venv/bin/python -m scripts.recording

gallery: setup  ## the pictures of docs/examples.md
	.venv/bin/python -m scripts.gallery

chaos: setup  ## kill -9 during 200 running tasks on SQLite, twenty times, and during webhook deliveries; random histories
	.venv/bin/python -m tests.chaos --rounds 20 --tasks 200 --trials 500

chaos-cluster: setup  ## three replicas on PostgreSQL: kill -9 twenty times, zombies, crashes, faults of the database, partitions, wrong clocks (50 minutes)
	.venv/bin/python -m tests.cluster --rounds 20 --tasks 200

test-matrix:  ## every supported Python, each with the oldest and the newest dependencies
	scripts/test-matrix $(VERSIONS)

check: setup audit  ## ruff, formatting, mypy --strict, known vulnerabilities
	.venv/bin/ruff check $(CHECKED)
	.venv/bin/ruff format --check $(CHECKED)
	.venv/bin/mypy $(CHECKED)

audit: .venv/.stamp  ## look up the dependencies in a database of vulnerabilities, if it is reachable
	.venv/bin/python -m scripts.audit requirements/dev.txt

format: setup  ## fix and format with ruff
	.venv/bin/ruff check --fix $(CHECKED)
	.venv/bin/ruff format $(CHECKED)

bench: setup  ## measure everything beside every peer, up to 15 minutes; writes docs/performance.md
	.venv/bin/python -m benchmarks.run --write docs/performance.md

bench-quick: setup  ## the same in 90 seconds, to see that it works; writes nothing
	.venv/bin/python -m benchmarks.run --quick

docs: .venvs/docs/.stamp .venvs/run/.stamp  ## the site of the documentation, into build/site: HTML, and the Markdown of each page
	PYTHONPATH=src .venvs/run/bin/python -m scripts.docs prepare
	.venvs/docs/bin/zensical build --strict
	PYTHONPATH=src .venvs/run/bin/python -m scripts.docs complete

dist: .venv/.stamp  ## the wheel, the source archive, their bill of materials and checksums, into dist
	rm -rf dist
	SOURCE_DATE_EPOCH=$$(git log -1 --format=%ct) .venv/bin/python -m hatchling build -d dist
	PYTHONPATH=src .venv/bin/python -m scripts.sbom requirements/run.txt dist/sbom.cdx.json
	cd dist && { sha256sum * 2>/dev/null || shasum -a 256 *; } >../SHA256SUMS && mv ../SHA256SUMS .

lock: .venvs/lock/.stamp  ## update requirements/*.txt
	scripts/lock .venvs/lock/bin/uv

.venvs/lock/.stamp:
	$(PYTHON) -m venv .venvs/lock
	.venvs/lock/bin/python $(PIP) uv
	@touch $@

clean:  ## remove environments, caches and build results
	rm -rf .venv .venvs .mypy_cache .pytest_cache .ruff_cache .hypothesis .coverage build dist
