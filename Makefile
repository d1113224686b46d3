# The front door. Every target sets up what it needs in .venv (tools/setup.sh); nothing is installed outside this
# directory unless you are root on Debian and a system package is missing.

VENV := .venv
BIN := $(VENV)/bin
VENV_PYTHON := $(BIN)/python
# Node may live in the virtual environment, see tools/setup.sh.
export PATH := $(CURDIR)/$(BIN):$(PATH)

CORE := $(VENV)/.core-ready
SPARK := $(VENV)/.spark-ready
DEV := $(VENV)/.dev-ready
JS_DIR := tests/wire/js
JS := $(if $(wildcard $(JS_DIR)/package.json),$(JS_DIR)/node_modules/.ready)
COMPILED := build/compiled/.ready

HOT_ROOMS := model amqp dialect broker
PACKAGE_FILES := $(shell find src/spillway -name '*.py' -o -name '*.sql' -o -name '*.css' 2>/dev/null)
HOT_TESTS := $(wildcard $(HOT_ROOMS:%=tests/%)) tests/store/test_turn_codec.py tests/store/test_batch.py tests/contract/test_journals_at_random.py

# make test PYTEST_ARGS="-x -k lock"
PYTEST_ARGS ?=
PYTEST := $(VENV_PYTHON) -m pytest $(PYTEST_ARGS)
# Most tests wait for other processes: three at a time on two cores take half the time of one.
JOBS ?= 3
SPARK_BUDGET_S ?= 1800
# make serve SERVE_ARGS="--namespace contoso=5672"
SERVE_ARGS ?= --dev
ROUNDS ?= 20
KILLS ?= 200
CUTS ?= 60
SEEDS ?= 400
FIRST ?= 100000
SPARK_KILLS ?= 20
DAYS ?= 30
PLAYS ?= 200
PLAY ?= 1
MINUTES ?= 60

.DEFAULT_GOAL := help
.PHONY: help demo test test-python test-spark test-spark-session test-spark-processes test-compiled lint format serve bench bench-paired bench-spark bench-capture bench-cost growth scorecard killtest sim attack spark-kills airflow long-batch lake-year spark-month powercut lab-soak field week callers load neighbours clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' Makefile

demo: $(SPARK) ## two namespaces, an outage, a verdict, and what it cost, with Spark. The pages are build/outage*.html
	@mkdir -p build
	@$(BIN)/spillway lab --report build/outage.html

test: lint test-python test-spark test-compiled ## everything: style, types, all tests, and those of the broker's core once more, compiled
	@echo "test: all passed"

test-python: $(DEV) $(JS)
	@echo "test: the whole suite"
	@$(PYTEST) -n $(JOBS) --dist loadfile --ignore tests/hostile -m "not spark_session and not spark_processes and not plays" --results-file build/results.json tests
	@echo "test: bad input, one attack after the other against one broker, whose memory is watched"
	@$(PYTEST) --results-file build/results-hostile.json tests/hostile
	@echo "test: random plays of callers, two brokers and time, two at a time"
	@$(PYTEST) --results-file build/results-plays.json -m plays tests/lab

# All that needs Spark, two at a time: those that share one session, for a Java machine takes long to get going, and those
# that start processes of their own, a cluster among them. Some minutes are what it should take; a run that hangs fails at
# the end of its budget.
test-spark: $(DEV)
	@$(MAKE) --no-print-directory -j 2 --output-sync=line test-spark-session test-spark-processes

test-spark-session: $(DEV)
	@echo "test: Spark, one session, against real brokers, inside $(SPARK_BUDGET_S) s"
	@$(PYTEST) --session-timeout $(SPARK_BUDGET_S) --results-file build/results-spark.json -m spark_session tests/spark

test-spark-processes: $(DEV)
	@echo "test: Spark in processes of its own: lab, cluster, example, inside $(SPARK_BUDGET_S) s"
	@$(PYTEST) --session-timeout $(SPARK_BUDGET_S) --results-file build/results-spark-processes.json -m spark_processes tests/spark

test-compiled: $(DEV)
	@if $(VENV_PYTHON) setup.py --can-compile; then \
		$(MAKE) --no-print-directory $(COMPILED) && \
		echo "test: the compiled parts once more, compiled" && \
		PYTHONPATH=build/compiled $(PYTEST) --expect-compiled --results-file build/results-compiled.json $(HOT_TESTS); \
	else echo "test: not compiled here, so the tests of the compiled parts ran once"; fi

lint: $(DEV) ## ruff and mypy --strict
	@echo "lint: ruff, mypy --strict"
	@$(BIN)/ruff check --quiet . && $(BIN)/ruff format --check --quiet . && $(BIN)/mypy

format: $(DEV) ## put the sources into the project's format
	@$(BIN)/ruff format . && $(BIN)/ruff check --fix --quiet .

serve: $(CORE) ## a broker on port 5672, data in ./spillway-data (SERVE_ARGS="...")
	@$(BIN)/spillway serve $(SERVE_ARGS)

bench: $(DEV) $(COMPILED) ## rates, CPU per message and latency, compiled and not, beside RabbitMQ and Artemis where installed
	@$(VENV_PYTHON) bench/run.py

growth: $(DEV) $(COMPILED) ## what a message costs as sizes, queues, connections, depth, subscriptions, sessions and ids grow
	@$(VENV_PYTHON) bench/growth.py

bench-paired: $(DEV) $(COMPILED) ## what pairing costs, what callers see of an outage, how fast a backlog comes home
	@$(VENV_PYTHON) bench/paired.py

bench-cost: $(DEV) ## metering and cost on Spark over 5 and 50 million ledger rows: time and memory
	@$(VENV_PYTHON) bench/cost.py

scorecard: $(DEV) $(JS) ## every promise of the contract, the tests that show it, and their result
	@$(VENV_PYTHON) tools/scorecard.py

bench-spark: $(DEV) $(COMPILED) ## the syphon on Spark, the same mover outside of it, and the SDK
	@$(VENV_PYTHON) bench/spark.py

bench-capture: $(DEV) $(COMPILED) ## entities into Parquet by the capture job, and browsed; CPU by stage
	@$(VENV_PYTHON) bench/capture.py

spark-kills: $(DEV) ## syphon, capture and a deleting stream on Spark, killed in every place, SPARK_KILLS=20 times each
	@$(VENV_PYTHON) tools/sparkkills.py --kills $(SPARK_KILLS)

long-batch: $(DEV) ## a batch of ten minutes between reading and settling, with locks of one
	@$(VENV_PYTHON) tools/long_batch.py

spark-month: $(DEV) ## a stream of each kind on Spark, left alone for DAYS=30 with outages, throttling and kills
	@$(VENV_PYTHON) tools/spark_month.py --days $(DAYS)

lake-year: $(DEV) ## a year of a million messages a day as files: how long listing and counting take
	@$(VENV_PYTHON) tools/lake_year.py

airflow: $(DEV) ## the operator for Airflow, run by Airflow's own harness, which is installed into build/airflow
	@$(VENV_PYTHON) tools/airflow_check.py

killtest: $(DEV) ## kill -9 under load, KILLS=200 times
	@$(VENV_PYTHON) tools/killtest.py --kills $(KILLS)

sim: $(DEV) ## settings, commands, faults and crashes drawn at random, SEEDS=400 from FIRST=100000 on, every promise checked
	@$(VENV_PYTHON) tools/sim.py --seeds $(SEEDS) --first $(FIRST)

attack: $(DEV) $(COMPILED) ## ten minutes of attacks beside 20 honest clients: process, memory, disk, messages, latency
	@PYTHONPATH=build/compiled $(VENV_PYTHON) tools/attack.py

powercut: $(DEV) ## cut the power under load, CUTS=60 times, on ext4 and xfs (needs root and loop devices)
	@$(VENV_PYTHON) tools/powercut.py --cuts $(CUTS)

lab-soak: $(DEV) $(COMPILED) ## every outage of the lab, ROUNDS=20 times each; goes on where it was cut off
	@PYTHONPATH=build/compiled $(VENV_PYTHON) tools/labsoak.py --rounds $(ROUNDS)

field: $(DEV) $(COMPILED) ## random plays of callers, primary, secondary and time, PLAYS=200 from PLAY=1 on; goes on where it was cut off
	@PYTHONPATH=build/compiled $(VENV_PYTHON) tools/field.py --seeds $(PLAYS) --first $(PLAY)

week: $(DEV) $(COMPILED) ## a week in an hour: 64 callers, 50 entities, both namespaces in trouble, MINUTES=60
	@PYTHONPATH=build/compiled $(VENV_PYTHON) tools/week.py --minutes $(MINUTES)

callers: $(DEV) $(COMPILED) ## what callers see of each fault, measured: the table in docs/pairing.md
	@PYTHONPATH=build/compiled $(VENV_PYTHON) tools/callers.py

load: $(DEV) $(COMPILED) ## a million messages, 20,000 sessions, 10,000 entities: memory and start-up time
	@$(VENV_PYTHON) tools/load.py

neighbours: $(DEV) $(COMPILED) ## what an attacker costs a neighbour: sends of one beside ten attacks of the other
	@$(VENV_PYTHON) tools/neighbours.py

clean: ## remove what was built; .venv stays
	rm -rf build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find src tests tools -name __pycache__ -prune -exec rm -rf {} +

$(CORE): pyproject.toml setup.py tools/setup.sh
	@sh tools/setup.sh core
	@touch $@

$(DEV): pyproject.toml setup.py tools/setup.sh
	@sh tools/setup.sh dev
	@touch $@ $(CORE) $(SPARK)

$(SPARK): pyproject.toml setup.py tools/setup.sh
	@sh tools/setup.sh spark
	@touch $@ $(CORE)

$(JS_DIR)/node_modules/.ready: $(JS_DIR)/package.json $(wildcard $(JS_DIR)/package-lock.json) | $(DEV)
	@sh tools/setup.sh js
	@touch $@

# One unit: mypyc compiles the hot rooms together, and the rest of the package is copied beside them.
$(COMPILED): $(PACKAGE_FILES) setup.py pyproject.toml | $(DEV)
	@echo "build: compiling $(HOT_ROOMS) (a minute or two)"
	@rm -rf build/compiled build/lib build/lib.* build/bdist.* build/temp.*
	@mkdir -p build
	@SPILLWAY_COMPILE=1 $(VENV_PYTHON) -m pip install -q --disable-pip-version-check --no-deps --no-build-isolation \
		--target build/compiled . >build/compile.log 2>&1 || { cat build/compile.log; exit 1; }
	@touch $@
