# Lockward: see README.md. `make help` lists the targets.

SHELL := /bin/bash
PORT ?= 6379
SECONDS ?= 60
ROUNDS ?= 24
SERVERS ?=
STAGES ?=
GUARD ?=
RETRIES ?=
MODULE := target/release/liblockward.so
PROBE_DIR := target/panic-probe
NEXT_MODULE := target/next-version/liblockward.so
INSTALL_DIR ?= /usr/lib/redis/modules

# Scripts and tests look for what is built there, wherever else a user may have told cargo to build.
export CARGO_TARGET_DIR := $(CURDIR)/target
# Tests wait for servers more than they work.
export RUST_TEST_THREADS ?= 8

.DEFAULT_GOAL := help
.PHONY: $(shell sed -n 's/^\([a-z-]*\):.*/\1/p' $(firstword $(MAKEFILE_LIST))) # nothing here is a file

help: ## Show this list.
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-14s %s\n", $$1, $$2}'

run: ## Start redis-server with the module in the foreground, on PORT (6379).
	@scripts/check-port $(PORT)
	@$(MAKE) --no-print-directory build
	@scripts/run $(PORT) $(MODULE)

test: test-builds ## Run all tests, those against real servers too.
	cargo test --workspace --no-fail-fast

test-docs: build ## Run every program that README.md and docs/ show, on real servers.
	cargo build --release -p lockward-cli
	@scripts/run-docs

test-long: test-builds ## Run the tests against real servers in their long form: crashes, damage, races, lost replies.
	LOCKWARD_LONG=1 cargo test -p lockward-tests -p lockward-client -- --nocapture

test-matrix: test-builds ## Run the tests against Redis 7.0 and 8.0, Valkey 8.0, 8.1 and 9: those of Debian, or only SERVERS.
	@scripts/test-matrix $(SERVERS)

test-packages: deb dist ## Install the packages on clean Debians as docs/installing.md says, and try them.
	@scripts/test-packages
	@scripts/check-dockerfile

test-clients: test-java ## All of the five below, some two at a time.
	cargo build --release -p lockward-retries
	@$(MAKE) --no-print-directory -j2 -Otarget test-retries test-python test-go test-node

test-python: build ## Check and test the Python client, clients/python, against a real server.
	cargo build --release -p lockward-tests --bin lockward-test-server
	@scripts/test-python

test-java: build ## Check and test the Java client, clients/java, against a real server.
	@scripts/test-java

test-go: build ## Check and test the Go client, clients/go, against a real server.
	@scripts/test-go

test-node: build ## Check and test the Node client, clients/node, against a real server.
	@scripts/test-node

test-retries: build ## See that locks count right under Redis clients as they come, while their replies are lost.
	cargo build --release -p lockward-retries
	@scripts/test-retries $(RETRIES)

test-builds: build
	@scripts/install-deps tmux
	cargo build --release -p lockward-cli -p lockward-empty-module
	cargo build --release --features panic-probe --target-dir $(PROBE_DIR) -p lockward
	scripts/patched-module $(NEXT_MODULE) tests/next-version.patch

sanitize: test-builds ## Run the tests against real servers under AddressSanitizer, built from Debian's source package.
	@scripts/sanitize

mutants: ## Break core/ in every small way, and see that its tests notice 95 % of that at least.
	@scripts/mutants

demo: build ## Show 50 clients counting to 5,000 with and without a lock.
	@cargo build --quiet --release -p lockward-cli
	@scripts/demo $(MODULE)

examples: build ## Run the programs in examples/ against Redis and PostgreSQL, and compare them with the docs.
	@scripts/examples $(MODULE)

play: build ## Show a client that is stopped past its lease and refused by its token, in Redis and PostgreSQL.
	@scripts/examples $(MODULE) play

torture: build ## Run 32 clients with faults meanwhile, for SECONDS (60), and judge what was seen.
	@cargo build --quiet --release -p lockward-torture
	@target/release/torture --seconds $(SECONDS) $(TORTURE)

torture-client: build ## The same with clients that use the Rust client, in four worlds, for SECONDS (60).
	@cargo build --quiet --release -p lockward-torture
	@target/release/torture --through-client --seconds $(SECONDS) $(TORTURE)

restore: build ## Let servers forget in ROUNDS (24), and see that holders get their tenures back.
	@cargo build --quiet --release -p lockward-torture
	@target/release/torture restore --rounds $(ROUNDS)

broken-builds: deps ## Show that builds broken on purpose are caught, each by its check.
	@cargo build --quiet --release -p lockward-torture
	@scripts/broken-builds target/release/torture

bench: bench-builds ## Measure all that performance is held to, in under ten minutes; on SERVERS; only STAGES.
	@SERVERS="$(SERVERS)" scripts/bench $(STAGES)

bench-docs: ## Write what the last make bench, with the same SERVERS, has found into docs/performance.md.
	@cargo build --quiet --release -p lockward-bench --bin bench
	@target/release/bench --docs docs $(if $(SERVERS),$(SERVERS:%=target/bench/%/results.json),target/bench/results.json)

bench-peers: build ## Measure Lockward beside other locks, or only beside PEERS, each job for SECONDS (8).
	@cargo build --quiet --release -p lockward-bench --bin peers --bin peer-lockward
	@target/release/peers $(PEERS) $(if $(filter command environment,$(origin SECONDS)),--seconds $(SECONDS))

bench-peers-docs: ## Write what the last run of bench-peers has measured into docs/peers.md.
	@cargo build --quiet --release -p lockward-bench --bin peers
	@target/release/peers --docs docs

guard: bench-builds ## Count the server's instructions for each kind of request, and see that none has got dearer.
	@scripts/install-deps valgrind
	@target/release/guard $(GUARD)

lint: deps ## Check formatting, lints, and the fences between the layers.
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

install: ## Install the module where Debian's redis service may load it from.
	@test -f $(MODULE) || $(MAKE) --no-print-directory build
	install -D -m 0755 $(MODULE) $(DESTDIR)$(INSTALL_DIR)/liblockward.so
	@echo "Add this line to /etc/redis/redis.conf and restart the server:"
	@echo "  loadmodule $(INSTALL_DIR)/liblockward.so"

deb: build-all ## Make a Debian package, target/debian/lockward_VERSION_ARCH.deb.
	@scripts/deb

dist: build-all ## Make a tarball with checksums, target/dist/lockward-VERSION-linux-ARCH.tar.gz.
	@scripts/dist

clean: ## Remove what was built.
	cargo clean

deps:
	@scripts/install-deps
