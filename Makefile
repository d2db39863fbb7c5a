.DEFAULT_GOAL := help
.PHONY: help setup run test check lint suite quick prove bench docs lock clean

# Where an environment keeps bytecode from being written, every process of a test compiles Weft anew.
export PYTHONDONTWRITEBYTECODE :=

python := .venv/bin/python
compile := .venv-uv/bin/uv pip compile --quiet --upgrade --universal --python-version 3.11 --generate-hashes \
	--no-emit-index-url --system-certs --custom-compile-command "make lock"

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## /{printf "  make %-6s  %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: ## Make .venv; quick when nothing changed
	@scripts/setup

run: setup ## Show what Weft does, on a throw-away ledger, and talk
	@$(python) -m weft.surfaces.demo

test: setup ## Check the code and run every test
	@$(MAKE) --no-print-directory --jobs=2 lint suite

suite: setup
	@test -d tests/kernel/__pycache__ || $(python) scripts/compile_tests.py || true # or each worker compiles all tests
	$(python) -m pytest -q -n auto --dist worksteal

lint: setup
	$(python) -m ruff check
	$(python) -m ruff format --check
	$(python) -m mypy

check: lint ## Lint, formatting, types, architecture
	$(python) -m pytest -q tests/architecture

quick: lint ## What a change concerns, in two minutes: its tests, contracts, types; SINCE=REV for more than it
	$(python) scripts/quick_tests.py $(SINCE) | xargs $(python) -m pytest -q -n auto --dist worksteal

prove: setup ## Fault and property tests at full size (long)
	WEFT_PROVE=1 $(python) -m pytest -o faulthandler_timeout=0 -n 2 --dist worksteal -m prove -ra --durations=20

bench: ## Measure Weft against its peers, in an environment of its own
	@scripts/setup bench
	.venv-bench/bin/python -m benchmarks

docs: setup ## Write the generated pages again
	$(python) scripts/generate_docs.py
	$(python) scripts/generate_cli_docs.py
	$(python) scripts/generate_graph_docs.py
	$(python) -m scripts.generate_json_docs
	$(python) -m scripts.generate_library_docs
	$(python) scripts/generate_aio.py

lock: setup ## Choose the newest versions that fit, with hashes
	$(compile) requirements/uv.in -o requirements/uv.txt
	$(compile) pyproject.toml -o requirements/run.txt
	$(compile) pyproject.toml --extra postgres --extra secrets --extra signing --extra providers --extra local \
		--extra code --extra mcp --extra similarity --extra tools --extra tokens --extra docker --extra server --extra telemetry \
		requirements/test.in \
		--overrides requirements/overrides.txt -c requirements/run.txt \
		-o requirements/test.txt
	$(compile) pyproject.toml --extra postgres --extra secrets --extra providers --extra similarity requirements/build.in requirements/bench.in \
		--overrides requirements/overrides.txt -c requirements/run.txt -o requirements/bench.txt

clean: ## Remove environments, caches and build output
	rm -rf .venv .venv-uv .venv-bench .venv-node .venv-cache .hypothesis .mypy_cache .pytest_cache .ruff_cache build dist
	find src tests benchmarks scripts -name __pycache__ -type d -prune -exec rm -rf {} +
