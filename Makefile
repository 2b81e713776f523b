# Two commands for a fresh machine with Python 3.11 or newer, both safe to repeat:
#   make demo   install into .venv, then check, simulate and run specs on a real model (CPU)
#   make test   install into .venv what tests need too, fetch the model (93 MB) once, then run all tests
# PYTHON=/path/to/python chooses the interpreter of a new .venv. pip is called plainly, so your pip
# configuration decides where packages come from.

PYTHON ?= python3
export PYTHON

.PHONY: demo test

demo:
	@scripts/install executor
	@scripts/demo

test:
	@scripts/install executor,dev
	@.venv/bin/fsm-spec model get smollm2-135m || echo "Tests on the real model are skipped: it is not here."
	@scripts/test
