PYTHON ?= .venv/bin/python

.PHONY: check test test-all demo
check:  ## format, lint, types
	$(PYTHON) -m ruff format --check . && $(PYTHON) -m ruff check . && $(PYTHON) -m mypy
test:  ## the default tests
	$(PYTHON) -m pytest
test-all:  ## what .ci/run runs
	.ci/run
demo:  ## the whole stage on bundled photos
	$(PYTHON) -m pipeline demo
