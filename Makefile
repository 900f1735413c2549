# Two commands set everything up from a bare Python 3.11: `make demo` and `make test`.

PYTHON ?= python3.11
VENV   ?= .venv
TORCH  ?= torch==2.13.0
EYAS    = $(VENV)/bin/eyas

export OMP_WAIT_POLICY = passive

.PHONY: demo test test-slow test-engine lint clean-demo install

# A torch that is already in the environment is kept; TORCH= names another.
install: $(VENV)/.installed

$(VENV)/.installed: pyproject.toml
	@test -x $(VENV)/bin/python || $(PYTHON) -m venv $(VENV)
	@echo "installing Eyas into $(VENV) (once, about two minutes)"
	@$(VENV)/bin/python -c "import torch" 2>/dev/null || $(VENV)/bin/pip install --quiet --disable-pip-version-check "$(TORCH)"
	@$(VENV)/bin/pip install --quiet --disable-pip-version-check --editable ".[demo,dev]"
	@touch $@

demo: install
	@echo "preparing the demo target (once: 93 MB download, 272 MB of disk, about a minute)"
	@$(EYAS) target demo
	@$(EYAS) plan run $(RECIPE)
	@$(EYAS) run $(RECIPE) $(RUN)

RECIPE ?= recipes/demo.yaml
RUN    ?=

test: install
	@$(VENV)/bin/python -m pytest -m "not slow and not engine"

test-slow: install
	@$(EYAS) target demo
	@$(VENV)/bin/python -m pytest -m "slow and not engine"

# The real engine, in an environment of its own (3.5 GB): the last line says `engine: N passed, M failed`.
test-engine: install
	@$(VENV)/bin/python tests/engine/run.py

lint: install
	@$(VENV)/bin/ruff format --check .
	@$(VENV)/bin/ruff check .
	@$(VENV)/bin/mypy

clean-demo:
	rm -rf runs/demo
