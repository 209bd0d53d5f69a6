# Every command makes what it needs inside .envs, which git ignores.
# ARGS go to the program that runs: make test ARGS="-k dropout -x"

NOX := .envs/tools/bin/nox --noxfile .ci/noxfile.py

.PHONY: demo demo-torch test matrix rest bench docs lint format compatibility clean

# The main job on real input: a small GPT and an image model, plain and recomputed.
# On JAX: make demo ARGS="--backend jax"
demo: .envs/tools/done
	$(NOX) --session demo -- $(ARGS)

demo-torch: .envs/tools/done
	$(NOX) --session demo-torch -- $(ARGS)

# The tests in the newest environment.
test: .envs/tools/done
	$(NOX) --tags test --report $(CURDIR)/.envs/results/test.json -- $(ARGS)

# Everything: all environments, examples, docs, lint, mutation check. Needs Python 3.7 to 3.13.
matrix: test rest

rest: .envs/tools/done
	$(NOX) --tags rest --parallel 2 --report $(CURDIR)/.envs/results/rest.json

bench: .envs/tools/done
	$(NOX) --session bench -- $(ARGS)

docs: .envs/tools/done
	$(NOX) --session docs

lint: .envs/tools/done
	$(NOX) --session lint

format: .envs/tools/done
	$(NOX) --session format

# Writes the table of docs/compatibility.md from the results of the last `make matrix`.
compatibility: .envs/tools/done
	.envs/tools/bin/python .ci/compatibility.py --write

clean:
	rm -rf .envs

.envs/tools/done: .ci/tools.txt
	python3 -m venv --clear .envs/tools
	.envs/tools/bin/python -m pip install --quiet --requirement .ci/tools.txt
	mkdir -p .envs/results
	touch $@
