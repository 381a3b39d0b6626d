# make help lists the targets. Everything that needs the environment makes it first.
PYTHON  ?= python3
VENV    := .venv
DBLP    := $(VENV)/bin/dblp
READY   := $(VENV)/.ready
PROFILE ?= laptop
ENGINE  ?= auto
OUT     ?= results/paper
DEVICE  ?= cuda
SCENARIOS ?= paper/efficientnet-microburst paper/efficientnet-polling paper/efficientnet
OTHERS   := paper/densenet169-phases paper/resnet50-microburst paper/resnet50-polling paper/resnet50 paper/alexnet paper/gpt2
SENSITIVITY := studies/sensitivity-k studies/sensitivity-eta studies/sensitivity-frequency studies/sensitivity-order
RUNS    ?= $(firstword $(wildcard $(OUT)) results/reference)

.PHONY: help setup reproduce-paper reproduce-all report claims regime-map sensitivity ablation baselines demo bench gpu-check gallery test test-netem lint clean
.DEFAULT_GOAL := help

help:
	@echo 'make setup            tools (apt, as root) and a Python environment in $(VENV)'
	@echo 'make reproduce-paper  the paper'"'"'s burst experiment, tables and figures: PROFILE=laptop|paper|smoke ENGINE=auto|mininet|local OUT=folder RESUME=1'
	@echo 'make reproduce-all    the other models, too: all tables and figures of the paper'
	@echo 'make report           tables and figures again, from the runs in OUT'
	@echo 'make claims           each number of the paper with a verdict, from the runs in RUNS (default: OUT, else results/reference)'
	@echo 'make regime-map       when a burst costs passes and when bytes: theory, with the runs in RUNS and the paper on it'
	@echo 'make sensitivity      accuracy against bytes for k, eta, detection frequency and chunk order'
	@echo 'make ablation         what each option of the transport does to accuracy at the same bytes'
	@echo 'make baselines        EfficientNetB0 over DBLP, MLT, TCP, Gloo and plain UDP under the same bursts'
	@echo 'make demo             one small burst, ends with a picture of the send latency'
	@echo 'make bench            send latency on idle links against its floor (root)'
	@echo 'make gpu-check        steps, copies and a run on a GPU (no root, no network): DEVICE=cuda|cpu'
	@echo 'make gallery          a run and a picture of each kind of burst, for docs/bursts.md (root; boots a kernel with netem for some)'
	@echo 'make test             all tests'
	@echo 'make test-netem       the tests that need netem; boots a kernel that has it where this one has not (root, apt)'
	@echo 'make lint             ruff'
	@echo 'make clean            removes the environment and caches; results stay'

setup: $(READY)

$(READY): pyproject.toml testbed/install.sh
	@PYTHON=$(PYTHON) testbed/install.sh $(VENV)
	@touch $@

# $(call study,scenarios,folder): the report is drawn even when a run has failed: it names the failure, and so does the
# exit status.
define study
	@$(DBLP) run $(1) --profile $(PROFILE) --engine $(ENGINE) --out $(2) $(if $(RESUME),--resume,--overwrite); status=$$?; \
	[ $$status -gt 1 ] || $(DBLP) report $(2) || status=$$?; exit $$status
endef

reproduce-paper: $(READY)
	$(call study,$(SCENARIOS),$(OUT))

reproduce-all: $(READY)
	$(call study,$(SCENARIOS) $(OTHERS),$(OUT))

sensitivity: $(READY)
	$(call study,$(SENSITIVITY),results/sensitivity)

ablation: $(READY)
	$(call study,studies/ablation,results/ablation)

baselines: $(READY)
	$(call study,paper/baselines,results/baselines)

report: $(READY)
	@$(DBLP) report $(OUT)

claims: $(READY)
	@$(DBLP) claims $(RUNS)

regime-map: $(READY)
	@$(VENV)/bin/python -m analysis.regime_map $(RUNS) --out $(RUNS)

demo: $(READY)
	@$(DBLP) run examples/demo --engine $(ENGINE) --out results/demo --overwrite
	@$(DBLP) report results/demo

bench: $(READY)
	@$(VENV)/bin/python -m testbed.bench --out results/bench
	@$(VENV)/bin/python -m analysis.bench results/bench

gpu-check: $(READY)
	@$(VENV)/bin/python -m testbed.gpucheck --device $(DEVICE)

# What this kernel refuses (status 2) runs in a guest that has netem. burst-kill fails, as it should.
gallery: $(READY)
	@for path in scenarios/examples/burst-*.yaml; do \
	  run="$(DBLP) run $$path --engine mininet --out results/gallery --overwrite"; $$run; \
	  [ $$? -ne 2 ] || tests/netem/with-netem 1800 "$$run" || exit; done
	@$(VENV)/bin/python -m analysis.gallery results/gallery --out docs/bursts

test: $(READY)
	@$(VENV)/bin/python -m pytest

test-netem: $(READY)
	@tests/netem/run

lint: $(READY)
	@$(VENV)/bin/ruff check .

clean:
	rm -rf $(VENV) .cache build *.egg-info .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
