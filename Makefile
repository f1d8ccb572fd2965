# Each target makes the machine ready first (scripts/setup), then does what its line in `make help` says. Settings, on the
# command line or in the environment:
#   JOBS       how many things to build at once; as many as there are cores unless said
#   ARGS       goes to the program that the target ends in: make test ARGS='--filter Scope', make demo ARGS='login --help'
#   DEMO       how `make demo` builds: release unless said; debug goes on from what `make test-demo` has built
#   SECONDS    how long `make soak` and `make soak-net` run; 600 unless said
#   SEED       the seed of the first program of `make soak`, or of the conversations of `make soak-net`; random unless said
#   CONNECTIONS  how many short connections `make soak-net` opens and closes afterwards; 1000000 unless said
#   PROGRAMS   how many random programs `make soak-deadlocks` runs; 1000000 unless said
#   BUILD      what they build: debug unless said, or release, tsan, asan; `make test-examples` knows tsan and asan
#   CO_STRESS  multiplies the rounds of the stress tests. Each target has a value of its own that keeps its run short;
#              with 1 the tests do what their names say, but for some searches that sanitizers make a hundred times longer
#   STEPS      what `make nightly` does, such as "release docs"; all of it unless said
JOBS ?= $(shell nproc 2>/dev/null || echo 2)
ARGS ?=
DEMO ?= release
SECONDS ?= 600
SEED ?=
CONNECTIONS ?= 1000000
PROGRAMS ?= 1000000
BUILD ?= debug

# Files and lines are what reports of sanitizers and of crashes need; the rest of debug information costs a seventh of the
# compiler's time. Who debugs builds in a folder of their own, as Xcode and sourcekit-lsp do.
lines := -Xswiftc -gline-tables-only

# Builds with other settings have folders of their own, so that going from one to another builds nothing twice.
release := --scratch-path .build-release $(lines)
docs := --scratch-path .build-docs
demo := --scratch-path .build-demo

# SwiftPM gives the names of traits to the compiler in the order of a set of strings. That is another order in each
# process unless hashing is fixed, and another order compiles everything anew.
export SWIFT_DETERMINISTIC_HASHING := 1

# What every build in this repository is held to; a package that depends on it is not (see CO_WERROR in Package.swift).
strict := CO_WERROR=1
checks := -j $(JOBS) --explicit-target-dependency-import-check error
swift_build := $(strict) swift build --build-tests $(checks)
# build FOLDER,SETTINGS,OPTIONS: a build of the tests, with traits.
build = scripts/with-packages $(1) env $(2) $(swift_build) --scratch-path $(1) $(3)
# run FOLDER,CONFIGURATION: the tests, as they are built. Without SwiftPM, which would plan the build once more; with hashing
# as users have it; and as SwiftPM does, without signals that are ignored here: a shell ignores some in what it starts in
# the background. At most eight tests at once: with no limit, dozens of processes of tests spin on two processors, and
# the whole takes a fifth longer.
run = env --default-signal -u SWIFT_DETERMINISTIC_HASHING SWT_EXPERIMENTAL_MAXIMUM_PARALLELIZATION_WIDTH=8 \
  $(1)/$(2)/coroutinePackageTests.xctest --testing-library swift-testing
# build_and_test FOLDER,SETTINGS,OPTIONS: in debug.
build_and_test = $(call build,$(1),$(2),$(3)) && $(call run,$(1),debug)

# One debug build for the tests of all products, `make lint` and `make api`: all traits but the demo's.
traits := NIO,Logging,Metrics,ServiceLifecycle
debug_options := --traits $(traits),HTTP,Postgres $(lines)
debug_build := $(call build,.build,,$(debug_options))
debug_run := $(call run,.build,debug)
debug_setup := setup-tests setup-http setup-postgres
products := Coroutine CoroutineNet CoroutineTesting CoroutineNIO CoroutineLogging CoroutineServiceLifecycle \
  CoroutineHTTP CoroutinePostgres CoroutineWork CoroutineMetrics
served_tests := CoroutineHTTPTests,CoroutinePostgresTests,CoroutineWorkTests
trait_tests := CoroutineNIOTests,CoroutineLoggingTests,CoroutineMetricsTests,CoroutineServiceLifecycleTests

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help setup setup-all setup-tests setup-http setup-postgres setup-demo setup-examples setup-aarch64 setup-bench build \
  test test-release test-tsan test-asan test-threads test-memory test-optimised test-aarch64 test-embedder \
  soak soak-net soak-http soak-postgres fuzz-http soak-deadlocks test-context test-http test-peers test-postgres \
  test-examples test-demo demo site readme \
  thread-locals lint api format docs docs-serve guide consumer bench bench-net bench-postgres bench-inspect bench-kv ci \
  nightly clean

help: ## Lists the targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

setup: ## Installs what the library needs to build: Boost.Context
	@scripts/setup core

setup-tests: ## Installs what the library's tests use: curl, Go, socat, dig, nc and others
	@scripts/setup tests

setup-http: ## Installs what CoroutineHTTP and its tests need: OpenSSL, llhttp, curl, nginx, Go, wrk
	@scripts/setup core
	@scripts/setup http

setup-examples: ## Installs what only the tests of Examples need: curl, OpenSSL, wrk, Chromium
	@scripts/setup examples

setup-demo: ## Installs what the demo needs: libpng, zlib, SQLite, libpq, PostgreSQL
	@scripts/setup demo

setup-postgres: ## Installs what CoroutinePostgres and its tests need: libpq, PostgreSQL, pgbouncer, OpenSSL
	@scripts/setup postgres

setup-bench: ## Installs what make test-optimised and make bench-kv need: valgrind, Redis's command-line tools, nc, strace
	@scripts/setup core
	@scripts/setup bench

setup-all: setup setup-tests setup-http setup-postgres setup-examples setup-demo setup-aarch64 setup-bench

setup-aarch64: ## Installs what the tests for aarch64 need: Debian's cross compiler, qemu-user, Boost.Context for arm64
	@scripts/setup aarch64

build: setup ## Builds the library, debug; without traits, in a folder of its own
	$(strict) swift build $(checks) --scratch-path .build-debug $(ARGS)

# Stress tests run after the others, and one at a time, since each has threads enough for the machine. So do the tests
# of worlds: each computes for seconds on a thread that the others wait for; and those of metrics, which count what the
# whole process does. The tests of models wait for nothing, so they run beside each other. So do those of servers, which
# start processes. With ARGS of its own a target makes one run of it.
models := 'CoroutineInterleavingTests\.'
served := 'Coroutine(HTTP|Postgres|Work)Tests\.'
alone := 'Coroutine(Stress|Testing|Metrics)Tests\.'
# Targets of tests that are empty in a build without their trait take time all the same. The code of pages and the models
# are for `make test` alone: what models compile of the library is of one thread, and runs in the other tests as well.
debug_only := CoroutineInterleavingTests,CoroutineSnippetTests
skipped := CO_SKIP_TESTS=$(debug_only),CoroutineDemoTests,$(served_tests)

test: export CO_STRESS ?= 0.2
test: $(debug_setup) ## Runs the tests of all products, debug; installs what these talk to: servers, their libraries and clients
	$(debug_build)
	$(if $(ARGS),$(debug_run) $(ARGS),$(debug_run) --skip $(models) --skip $(served) --skip $(alone))
	$(if $(ARGS),,$(debug_run) --filter $(served))
	$(if $(ARGS),,$(debug_run) --filter $(alone) --no-parallel)
	$(if $(ARGS),,$(debug_run) --filter $(models))

# Of products that need no other package.
release_build := $(skipped),$(trait_tests) $(swift_build) -c release -Xswiftc -enable-testing $(release)
release_run := $(call run,.build-release,release)
test-release: export CO_STRESS ?= 0.5
test-release: setup-tests ## Runs the tests, optimised
	$(release_build)
	$(if $(ARGS),$(release_run) $(ARGS),$(release_run) --skip $(alone))
	$(if $(ARGS),,$(release_run) --filter $(alone) --no-parallel)

# With the objects of the tests, in which generic code of the library is specialised.
thread-locals: setup-tests ## Looks for addresses of thread-locals that optimised code keeps over a wait
	$(release_build)
	scripts/thread-locals
	scripts/with-packages .build-locals env $(strict) swift build -c release $(checks) --scratch-path .build-locals \
	  --traits $(traits),HTTP,Postgres
	scripts/thread-locals --products .build-locals/release

# The optimised library as a program gets it, by way of the benchmarks, which need no other package.
test-optimised: setup-bench ## Holds the optimised library to its allocations, its instructions, and no kept thread-locals
	JOBS=$(JOBS) Benchmarks/run --gates
	scripts/thread-locals Benchmarks/.build/release

# Under sanitizers the products behind traits are tested as well, in the same build.
#
# One at a time: beside each other, tests under ThreadSanitizer take five times the processor time. And without the second
# that a process, as each exit test is one, would wait at its end.
tsan_settings := TSAN_OPTIONS=atexit_sleep_ms=0:$$TSAN_OPTIONS
tsan_options := --traits $(traits) --sanitize=thread $(lines)
tsan_test := $(call build_and_test,.build-tsan,$(skipped),$(tsan_options)) --no-parallel
test-tsan: export CO_STRESS ?= 0.03
test-tsan: setup-tests ## Runs the tests under ThreadSanitizer, with those of the products behind traits
	export $(tsan_settings); $(tsan_test) $(ARGS)

# lld, because gold prints a warning for each symbol that AddressSanitizer keeps to itself. One at a time: LeakSanitizer looks
# when a process exits, as each exit test is one, and on a crowded machine finds threads that are still at their last acts.
asan_settings := ASAN_OPTIONS=detect_leaks=1:$$ASAN_OPTIONS
asan_options := --traits $(traits) --sanitize=address $(lines) -Xswiftc -use-ld=lld
asan_test := $(call build_and_test,.build-asan,$(skipped),$(asan_options)) --no-parallel
test-asan: export CO_STRESS ?= 0.03
test-asan: setup-tests ## Runs the tests under AddressSanitizer, with leak checking, and those behind traits
	export $(asan_settings) LSAN_OPTIONS=suppressions=$(CURDIR)/Tests/leaks.supp; $(asan_test) $(ARGS)

# For a change's CI: the stress tests, the tests of sockets, and of the kernel the folders that threads meet in. A filter
# sees the file of a test, and not its tags.
thread_folders := Wait Scheduler WorkerPool Cancellation
thread_files = $(patsubst %.swift,%,$(notdir $(wildcard $(thread_folders:%=Tests/CoroutineKernelTests/%/*.swift))))
empty :=
thread_suites = 'Coroutine(Stress|Net)Tests\.|CoroutineKernelTests\..*/($(subst $(empty) $(empty),|,$(strip $(thread_files))))\.swift'
thread_tests := CO_TESTS=CoroutineStressTests,CoroutineKernelTests,CoroutineNetTests
threads := $(call build_and_test,.build-threads,$(thread_tests),--sanitize=thread $(lines)) --no-parallel
test-threads: export CO_STRESS ?= 0.03
test-threads: setup-tests ## Runs the tests that are about threads under ThreadSanitizer
	export $(tsan_settings); $(threads) $(or $(ARGS),--filter $(thread_suites) --skip 'Snippets')

# For a change's CI as well: the C core, where a wrong address comes from, and the stress tests, which use all of it.
memory_tests := CO_TESTS=CCoroutineTests,CoroutineStressTests
memory := $(call build_and_test,.build-memory,$(memory_tests),--sanitize=address $(lines) -Xswiftc -use-ld=lld) --no-parallel
test-memory: export CO_STRESS ?= 0.03
test-memory: setup-tests ## Runs the tests of the C core, and the stress tests, under AddressSanitizer with leak checking
	export $(asan_settings); $(memory) $(ARGS)

# The builds that the other test targets have, so that nothing is built twice.
soak_debug := $(debug_build) && $(debug_run)
soak_release := $(release_build) && $(release_run)
soak_tsan := $(tsan_test)
soak_asan := $(asan_test)

# The C core alone, because there is no Swift for aarch64 here to link with. ARGS are words of a test's name.
test-aarch64: setup-aarch64 ## Runs the C core's own tests on an emulated aarch64; ARGS=--here runs them on this machine
	@JOBS=$(JOBS) scripts/aarch64 $(ARGS)

test-embedder: setup ## Compiles the C core alone, with cc and c++, and runs the program in C that embeds it (Examples/CCore)
	@JOBS=$(JOBS) scripts/embedder

soak: export CO_SOAK_SECONDS = $(SECONDS)
soak: export CO_SEED = $(SEED)
soak: export ASAN_OPTIONS := detect_leaks=1:$(ASAN_OPTIONS)
soak: $(debug_setup) ## Runs random programs, walks of stacks, bursts of launches, for SECONDS=600 each, from SEED= on, as BUILD=debug, release, tsan or asan
	$(if $(filter $(BUILD),debug release tsan asan),,$(error BUILD is debug, release, tsan or asan, not $(BUILD)))
	$(soak_$(BUILD)) --no-parallel --filter '\.(Soak|WalkSoak|BurstSoak)Tests' $(ARGS)

soak-deadlocks: export CO_DEADLOCK_PROGRAMS = $(PROGRAMS)
soak-deadlocks: export CO_SEED = $(SEED)
soak-deadlocks: $(debug_setup) ## Searches PROGRAMS=1000000 random programs for deadlocks that are none, or are missed, from SEED= on
	$(if $(filter $(BUILD),debug release tsan asan),,$(error BUILD is debug, release, tsan or asan, not $(BUILD)))
	$(soak_$(BUILD)) --no-parallel --filter '\.DeadlockSearchTests' $(ARGS)

soak-net: export CO_SOAK_SECONDS = $(SECONDS)
soak-net: export CO_SOAK_CONNECTIONS = $(CONNECTIONS)
soak-net: export CO_SEED = $(SEED)
soak-net: export ASAN_OPTIONS := detect_leaks=1:$(ASAN_OPTIONS)
soak-net: $(debug_setup) ## Lets 2,000 clients of a server talk for SECONDS=600, then opens and closes CONNECTIONS=1000000
	$(if $(filter $(BUILD),debug release tsan asan),,$(error BUILD is debug, release, tsan or asan, not $(BUILD)))
	$(soak_$(BUILD)) --no-parallel --filter '\.NetSoakTests' $(ARGS)

test-context: setup ## Runs the tests of context, with swift-log and swift-service-context
	swift test --package-path Tests/Context --scratch-path .build-context --disable-xctest -j $(JOBS) $(ARGS)

test-http: $(debug_setup) ## Runs the tests of CoroutineHTTP alone: HTTP/1.1 and TLS
	$(debug_build) && $(debug_run) --filter 'CoroutineHTTPTests\.' $(ARGS)

peers := $(CURDIR)/.build/peers
test-peers: export CO_HTTP_PEERS = $(peers)
test-peers: $(debug_setup) ## Runs the tests of CoroutineHTTP against httpbin, httpx, aiohttp and sslyze, which it installs from PyPI
	[ -x $(peers)/bin/python ] || python3 -m venv $(peers)
	$(peers)/bin/pip install --quiet --disable-pip-version-check httpbin gunicorn httpx aiohttp sslyze
	$(debug_build) && $(debug_run) --filter 'CoroutineHTTPTests\.PythonPeerTests' $(ARGS)

fuzz-http: export CO_HTTP_FUZZ ?= 10000000
fuzz-http: export CO_SEED = $(SEED)
fuzz-http: setup-http ## Parses ten million mutated requests, and serves half a million, under AddressSanitizer, from SEED= on
	$(call build_and_test,.build-fuzz,CO_TESTS=CoroutineHTTPTests,\
	  --traits HTTP --sanitize=address -Xswiftc -use-ld=lld) --filter FuzzTests $(ARGS)

soak-http: export CO_HTTP_SOAK_SECONDS = $(SECONDS)
soak-http: export CO_SEED = $(SEED)
soak-http: export CO_HTTP_CLIENTS ?= 2000
soak-http: $(debug_setup) ## Lets 2,000 clients of an HTTP server fail at random for SECONDS=600, from SEED= on
	$(debug_build) && $(debug_run) --filter HTTPSoakTests $(ARGS)

test-postgres: $(debug_setup) ## Runs the tests of CoroutinePostgres and CoroutineWork alone
	$(debug_build) && $(debug_run) --filter 'Coroutine(Postgres|Work)Tests\.' $(ARGS)

soak-postgres: export CO_POSTGRES_KILLS ?= 1000
soak-postgres: export CO_WORK_KILLS ?= 1000
soak-postgres: $(debug_setup) ## Kills 1,000 backends, and 1,000 workers, at random
	$(debug_build) && $(debug_run) --filter KillTests $(ARGS)

# A package of its own, with a folder of its own. Its packages are resolved there, so nothing is put away.
# Without libwslay-dev the WebSocket is left out.
export CO_WSLAY := $(wildcard /usr/include/wslay/wslay.h)
examples := --package-path Examples --scratch-path .build-examples -j $(JOBS)
examples_of_debug := $(examples)
examples_of_tsan := --package-path Examples --scratch-path .build-examples-tsan -j $(JOBS) --sanitize=thread
examples_of_asan := --package-path Examples --scratch-path .build-examples-asan -j $(JOBS) --sanitize=address \
  -Xswiftc -use-ld=lld

test-examples: export TSAN_OPTIONS := atexit_sleep_ms=0:$(TSAN_OPTIONS)
test-examples: export ASAN_OPTIONS := detect_leaks=1:$(ASAN_OPTIONS)
test-examples: export LSAN_OPTIONS := suppressions=$(CURDIR)/Examples/leaks.txt:print_suppressions=0:$(LSAN_OPTIONS)
test-examples: setup-http setup-postgres setup-examples ## Builds Examples and runs its tests: a site, routes of Hummingbird; BUILD=tsan, asan
	$(if $(filter $(BUILD),debug tsan asan),,$(error BUILD is debug, tsan or asan, not $(BUILD)))
	$(if $(filter $(BUILD),debug),$(strict) swift build $(examples))
	$(strict) swift build --build-tests $(examples_of_$(BUILD))
	$(strict) env -u SWIFT_DETERMINISTIC_HASHING swift test --skip-build $(examples_of_$(BUILD)) --disable-xctest \
	  $(if $(filter debug,$(BUILD)),,--no-parallel) $(ARGS)

site: setup-http ## Starts the feed site; ARGS=8080 is the port
	swift build $(examples) --product feed-site
	@.build-examples/debug/feed-site $(ARGS)

test-demo: setup-demo ## Runs the demo's own tests
	$(call build_and_test,.build-demo,CO_TESTS=CoroutineDemoTests,--traits Demo) $(ARGS)

# Built with SwiftPM, run without it: the demo then owns the terminal, and Ctrl-C reaches it alone.
demo: setup-demo ## Runs the demo: reads feeds, all at once, and stores what is new; or ARGS=login, chat, orders, sequences
	@echo 'Building the demo; the first time takes a few minutes.'
	@scripts/with-packages .build-demo \
	  swift build -c $(DEMO) --traits Demo --product CoroutineDemo -j $(JOBS) $(demo)
	@.build-demo/$(DEMO)/CoroutineDemo $(or $(ARGS),feeds)

readme: ## Runs the commands of the README's section "Try it", as they stand there
	@scripts/readme

lint: $(debug_setup) ## Checks layout, the rules that a text search can check, which folder names which, and docs/api
	@scripts/lint
	@$(debug_build) --quiet
	@scripts/arrows
	@scripts/api --check .build/debug $(products)

api: $(debug_setup) ## Writes the public interface of each product as text into docs/api
	$(debug_build) --quiet
	@scripts/api .build/debug $(products)

format: ## Repairs the layout, then checks the rest
	@scripts/lint --fix

# One site for the products that need no other package.
docs: setup setup-postgres ## Builds the documentation into docs-out; a warning is an error
	CO_DOCS=1 scripts/with-packages .build-docs swift package $(docs) --traits Postgres -j $(JOBS) \
	  --allow-writing-to-directory docs-out generate-documentation --target Coroutine --target CoroutineNet \
	  --target CoroutineTesting --target CoroutinePostgres --target CoroutineWork \
	  --enable-experimental-combined-documentation --output-path docs-out \
	  --warnings-as-errors --analyze --transform-for-static-hosting --hosting-base-path coroutine
	@scripts/docs docs-out

# The site expects to be at /coroutine.
docs-serve: ## Shows what `make docs` has built, to this machine alone; ARGS=8000 is the port
	@mkdir -p .build-docs/site && ln -sfn $(CURDIR)/docs-out .build-docs/site/coroutine
	@echo 'The documentation is at http://127.0.0.1:$(or $(ARGS),8000)/coroutine/documentation/'
	@python3 -m http.server --bind 127.0.0.1 --directory .build-docs/site $(or $(ARGS),8000)

guide: setup-http setup-postgres ## Does what the article Getting started says, in an empty folder
	@scripts/guide

consumer: setup ## Builds a package that depends on this one; checks that it fetches no other; ARGS=--quick for one build
	@JOBS=$(JOBS) scripts/consumer $(ARGS)

bench: setup ## Runs the benchmarks; ARGS=--quick for one quick pass
	Benchmarks/run $(ARGS)

bench-net: setup ## Compares servers: ours, epoll in C, Go, Asio, SwiftNIO, Hummingbird; ARGS=--quick for a minute
	Benchmarks/run-net $(ARGS)

bench-postgres: setup setup-postgres ## Compares statements and jobs with pgbench, in turn; ARGS=--quick for half a minute
	Benchmarks/run-postgres $(ARGS)

bench-inspect: setup ## Measures snapshots, metrics, the recorder, and how soon a stall and a deadlock are named; a minute
	Benchmarks/run-inspect $(ARGS)

bench-kv: setup-bench ## Compares a key-value server of ours with redis-server; ARGS=--quick for half a minute
	Benchmarks/run-kv $(ARGS)

ci: ## Runs everything that a change must pass: half an hour on two cores
	.ci/run

nightly: ## Runs everything else as well: hours; STEPS="release docs" runs these two
	scripts/nightly $(STEPS)

clean: ## Removes everything that building wrote
	rm -rf .build .build-* docs-out Package.resolved
	rm -rf Tests/Consumer/.build Tests/Consumer/Package.resolved
	rm -rf Benchmarks/.build Benchmarks/.build-* Benchmarks/Package.resolved
	rm -rf Examples/.build Examples/Package.resolved
