# Lockward: see README.md. `make help` lists the targets.

SHELL := /bin/bash
PORT ?= 6379
SECONDS ?= 60
SERVERS ?=
STAGES ?=
CURVES ?=
JOBS ?=
RETRIES ?=
CLIENT ?=
MODULE := target/release/liblockward.so
PROBE_DIR := target/panic-probe
NEXT_MODULE := target/next-version/liblockward.so
INSTALL_DIR ?= /usr/lib/redis/modules

# Scripts and tests expect the builds in this folder.
export CARGO_TARGET_DIR := $(CURDIR)/target
# More threads than CPUs, because tests mostly wait for servers.
export RUST_TEST_THREADS ?= 8

.DEFAULT_GOAL := help
.PHONY: $(shell sed -n 's/^\([a-z0-9-]*\):.*/\1/p' $(firstword $(MAKEFILE_LIST))) # No target is a file.

help: ## Show this list.
	@grep -hE '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-14s %s\n", $$1, $$2}'

run: check-port build ## Start redis-server with the module in the foreground, on PORT (6379).
	@scripts/run $(PORT) $(MODULE)

check-port: # before the build, which may take minutes
	@scripts/run $(PORT)

test: test-builds ## Run all tests, including those against real servers.
	cargo test --workspace --no-fail-fast

test-docs: test-server ## Run every program in README.md and docs/ on real servers.
	cargo build --release -p lockward-cli
	@scripts/run-docs

test-long: test-builds ## Run the long form of the tests: crashes, damage, races, lost replies.
	LOCKWARD_LONG=1 cargo test -p lockward-tests -p lockward-client -- --nocapture

test-matrix: test-builds ## Run the tests against Redis 7.0, 8.0 and 8.6, and Valkey 8.0, 8.1 and 9, or only against SERVERS. CONFIG="io-threads 4" adds a setting.
	@LOCKWARD_CONFIG="$(CONFIG)" scripts/test-matrix $(SERVERS)

test-arm64: build-all ## Run the tests with an arm64 server and module, emulated. SERVERS may be valkey-testing-arm64.
	@SERVERS="$(SERVERS)" scripts/test-arm64

test-packages: deb dist ## Install the packages on clean Debians as in docs/installing.md, and test them. Needs root.
	@scripts/test-packages

test-clients: test-java ## Run test-python, test-java, test-go, test-node, test-retries and test-published.
	cargo build --release -p lockward-retries
	@$(MAKE) --no-print-directory -j2 -Otarget test-retries test-python test-go test-node
	@$(MAKE) --no-print-directory test-published

test-python: test-server ## Lint and test the Python client.
	@scripts/test-python

test-java: test-server ## Lint and test the Java client.
	@scripts/test-java

test-go: test-server ## Lint and test the Go client.
	@scripts/test-go

test-node: test-server ## Lint and test the Node client.
	@scripts/test-node

test-published: test-server ## Build the clients' packages as for publication, and try each from a clean folder.
	@scripts/test-published

conformance: build ## Play the conformance suite with all clients, or only CLIENT.
	@scripts/conformance $(CLIENT)

conformance-self-test: build ## Check that the conformance suite finds the defects of a broken client.
	@scripts/conformance rust -- --self-test

test-retries: build ## Check hold counts with Redis clients that repeat commands after lost replies.
	cargo build --release -p lockward-retries
	@scripts/test-retries $(RETRIES)

test-server: build
	cargo build --release -p lockward-tests --bin lockward-test-server

test-builds: build
	@scripts/install-deps tmux
	cargo build --release -p lockward-cli -p lockward-empty-module
	cargo build --release --features panic-probe --target-dir $(PROBE_DIR) -p lockward
	scripts/patched-module $(NEXT_MODULE) tests/next-version.patch

sanitize: test-builds ## Run the tests under AddressSanitizer, with a server built from Debian's source package.
	@scripts/sanitize

mutants: ## Run mutation tests of core/. Its tests must catch 95 % of the mutants.
	@scripts/mutants

demo: build ## Show 50 clients that count to 5,000, with and without a lock.
	@cargo build --quiet --release -p lockward-cli
	@scripts/with-server target/release/lockward demo

examples: build ## Run the programs in examples/ against Redis and PostgreSQL.
	@scripts/with-server scripts/examples

torture: build ## Run 32 clients with faults for SECONDS (60), and check their records.
	@cargo build --quiet --release -p lockward-torture
	@target/release/torture --seconds $(SECONDS) $(TORTURE)

torture-client: build ## Run torture through the Rust client, in four server setups.
	@cargo build --quiet --release -p lockward-torture
	@target/release/torture --through-client --seconds $(SECONDS) $(TORTURE)

broken-builds: deps ## Check that torture finds the defects of broken builds.
	@cargo build --quiet --release -p lockward-torture
	@scripts/broken-builds target/release/torture

bench: bench-builds ## Measure the cost on SERVERS, and check the targets. STAGES selects stages.
	@SERVERS="$(SERVERS)" scripts/bench $(STAGES)

bench-scale: bench-builds ## Measure how the cost grows with locks, waiters, holders and nodes. CURVES selects curves.
	@target/release/bench --scale --into target/scale $(CURVES)

bench-peers: build ## Measure Lockward and other locks for SECONDS (8) each. PEERS and JOBS select measurements.
	@cargo build --quiet --release -p lockward-bench --bin peers -p lockward-peers --bin peer-lockward
	@target/release/peers $(PEERS) $(JOBS:%=--jobs %) $(if $(filter command environment,$(origin SECONDS)),--seconds $(SECONDS))

flames: build ## Draw flame graphs of the server's CPU time, for docs/performance.md.
	@scripts/install-deps linux-perf
	@cargo build --quiet --release -p lockward-bench --bin flames
	@target/release/flames

guard: bench-builds ## Count the server's instructions for each kind of request. Fails if a count is above its limit.
	@scripts/install-deps valgrind
	@target/release/guard

lint: deps ## Check formatting, clippy and the layers.
	cargo fmt --all --check
	cargo clippy --workspace --all-targets -- -D warnings
	cargo clippy -p lockward --features panic-probe -- -D warnings
	scripts/check-layers

build: deps ## Build the module, target/release/liblockward.so.
	cargo build --release -p lockward

build-all: build
	cargo build --release -p lockward-cli

bench-builds: build
	cargo build --release -p lockward-bench -p lockward-empty-module

install: ## Install the module in the folder from which Debian's Redis service may load it.
	@test -f $(MODULE) || $(MAKE) --no-print-directory build
	install -D -m 0755 $(MODULE) $(DESTDIR)$(INSTALL_DIR)/liblockward.so
	@echo "Add this line to /etc/redis/redis.conf and restart the server:"
	@echo "  loadmodule $(INSTALL_DIR)/liblockward.so"

deb: build-all ## Make a Debian package, target/debian/lockward_VERSION_ARCH.deb.
	@scripts/deb

dist: build-all ## Make a tarball, target/dist/lockward-VERSION-linux-ARCH.tar.gz.
	@scripts/dist

clean: ## Remove all builds.
	cargo clean

deps:
	@scripts/install-deps
