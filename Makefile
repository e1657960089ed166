# The commands; `make run` and `make test` are the two that matter. What they install stays in this folder, but for what
# `make cluster` builds: its cache outlives the checkout (GPUSPAWNER_CACHE).
.DEFAULT_GOAL := help
.PHONY: help run run-cluster test test-all bench size docs package sbom images release cluster cluster-stop test-cluster clean
python = python=$$(sh tools/python.sh) && exec $$python

help: ## what can be made
	@sed -n 's/^\([a-z-]*\):.*## /make \1\t/p' Makefile | expand -t 19
	@echo "For run and run-cluster: PORT=8001, FAST=1 (a policy's half hour takes a minute), DATA=folder"
	@echo "For run: DEMO=0 (no scripted colleagues), SCHEDULER=http (an external scheduler owns the queue)"
	@echo "For run and run-cluster: NVIDIA=a100 (NVIDIA's simulated driver; also b200, gb200, gb300, h100, l40s, t4)"

run: ## hub, proxy and service on http://127.0.0.1:8000, with simulated GPUs where there are none
	@$(python) -m demo.run

run-cluster: ## the same on a real Kubernetes: hub in a pod, workspaces in pods; as root, see make cluster
	@$(python) -m demo.run_cluster

test: ## lint, types and tests, also in hubs, a browser and a cluster: 15 minutes on two cores
	@$(python) -m tools.check

test-all: ## every test, on both JupyterHub versions and every Python: an hour
	@$(python) -m tools.check all

bench: ## figures of the hot paths
	@$(python) -m tools.bench

size: ## files, lines, statements and classes of each package
	@$(python) -m tools.size

docs: ## the documentation as a site, into site/; a broken link fails
	@$(python) -m tools.docs

package: ## wheel and source archive, into dist/
	@$(python) -m tools.package build

sbom: ## the same, the licences of all that it pulls in, and its bill of materials (CycloneDX)
	@$(python) -m tools.package sbom

images: ## of service, hub and workspaces, by docker, podman or buildah; IMAGES="service hub", PREFIX=registry.example.org/ml/
	@$(python) -m tools.images

release: ## everything that a release publishes, into dist/; IMAGES=none leaves images out; see RELEASE.md
	@$(python) -m tools.release

cluster: ## a real Kubernetes on this machine, of one node; as root, 15 minutes the first time
	@$(python) -m tools.cluster start

cluster-stop: ## end it, and leave nothing of it
	@$(python) -m tools.cluster stop

test-cluster: ## of the tests, those on Kubernetes; GPUSPAWNER_TEST_KUBECONFIG names another cluster
	@$(python) -m tools.check cluster

clean: ## remove all that run and test made, the demo's data included
	@for folder in .run/cluster*/state.json; do [ ! -e $$folder ] || \
	    { ($(python) -m tools.cluster --folder $${folder%/*} stop); } || exit 1; done
	rm -rf site .venv .venv-* .run .cache .coverage .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache
