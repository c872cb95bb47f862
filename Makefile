# Tapestore. `make` shows what there is; only Go (and make) must be installed.

GO ?= go

# Nothing here needs the commit stamped into a binary, and stamping fails in a
# checkout that belongs to another user.
export GOFLAGS += -buildvcs=false

# Modules of their own: the example stands for an adapter outside this repository,
# and what starts containers stays out of what users of this one carry, as do the
# libraries that the benchmark measures beside the stores.
EXAMPLE := conformance/example
CONTAINERS := containers
PEERS := bench/peers
TEMPORAL := bench/peers/temporal
K8S := lease/k8s
SITE := docs/site
UI := inspector/browsertest

.DEFAULT_GOAL := help

.PHONY: help
help: ## show this
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-16s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

COMMIT := $(shell git rev-parse --short=12 HEAD 2>/dev/null)

TAPESTORE := bin/tapestore

# -v names each package as it is compiled: the first build compiles all of them.
.PHONY: build
build: ## the command, as bin/tapestore
	@echo "building $(TAPESTORE): minutes the first time, then seconds"
	$(GO) build -v -ldflags "-X github.com/tapestore/tapestore/conformance/version.commit=$(COMMIT)" -o $(TAPESTORE) ./cmd/tapestore

VERSION ?= $(shell git describe --tags --always 2>/dev/null || echo devel)

.PHONY: dist
dist: ## static programs for all platforms with checksums, into dist/; PLATFORMS=linux/amd64 chooses
	DIST_LINK_COMMIT=1 PLATFORMS="$(PLATFORMS)" .ci/dist $(VERSION)

.PHONY: man
man: build ## the manual pages, into dist/man1
	$(TAPESTORE) man dist/man1

IMAGE ?= tapestore:local

# The image is FROM scratch, so building it fetches nothing.
.PHONY: image
image: ## the container image, from a static program of this checkout
	CGO_ENABLED=0 GOOS=linux $(GO) build -trimpath -ldflags "-s -w -X github.com/tapestore/tapestore/conformance/version.commit=$(COMMIT)" -o dist/image/tapestore ./cmd/tapestore
	mkdir -p dist/image/data dist/image/tmp
	cp deploy/Dockerfile dist/image/Dockerfile
	cp $(CA_CERTIFICATES) dist/image/ca-certificates.crt
	docker build -t $(IMAGE) dist/image

# The roots that the image trusts, for the Google APIs and for databases with public certificates.
CA_CERTIFICATES ?= /etc/ssl/certs/ca-certificates.crt

# On a terminal the server gets a process group of its own (set -m). Otherwise Ctrl-C
# would also reach make, which would end with an error however well the server stops.
.PHONY: run
run: build ## serve Tape on a SQLite file, ./tape.db; Ctrl-C stops it
	@if [ -t 0 ]; then set -m; fi; $(TAPESTORE) serve --store sqlite:./tape.db

.PHONY: test
test: gofmt ## what CI runs: gofmt, then every test once; says what it leaves to test-full
	$(GO) run ./internal/testrun
	$(GO) -C $(EXAMPLE) test -vet=off -count=1 ./...

.PHONY: test-full
test-full: lint lint-containers ## the race detector on everything, all rounds, every transport, peers, containers; takes hours
	$(GO) run ./internal/testrun -full
	$(GO) -C $(EXAMPLE) test -race -count=1 ./... # as often as make test: it rewrites a whole run with each record, and a full run has 100,000
	$(MAKE) k8s
	$(MAKE) ui-test
	$(MAKE) peers
	$(MAKE) containers

.PHONY: containers
containers: ## the suite on engines in containers; needs Docker
	TAPESTORE_EFFORT=full $(GO) -C $(CONTAINERS) test -race -count=1 -parallel 6 -timeout 60m ./...

# Lint tools are pinned in the module tools, so that users of the library never
# see them.
STATICCHECK := bin/staticcheck

.PHONY: gofmt
gofmt:
	@unformatted=$$($$($(GO) env GOROOT)/bin/gofmt -l .); \
	if [ -n "$$unformatted" ]; then echo "not formatted (gofmt -w them):"; echo "$$unformatted"; exit 1; fi

.PHONY: vet
vet: gofmt ## gofmt and go vet
	$(GO) vet ./...
	$(GO) -C $(EXAMPLE) vet ./...

# go vet and staticcheck would take a seventh of the CPU time of make test.
.PHONY: lint
lint: vet $(STATICCHECK) ## vet, and staticcheck with every check
	$(GO) -C tools vet ./...
	$(STATICCHECK) ./...

.PHONY: lint-containers
lint-containers: $(STATICCHECK) ## the same for the module of containers, which has many dependencies
	$(GO) -C $(CONTAINERS) vet ./...
	cd $(CONTAINERS) && $(CURDIR)/$(STATICCHECK) ./...

$(STATICCHECK): tools/go.mod
	$(GO) -C tools build -o ../bin/ honnef.co/go/tools/cmd/staticcheck

GOVULNCHECK := bin/govulncheck
MODULES ?=

.PHONY: vuln
vuln: $(GOVULNCHECK) ## known vulnerabilities in what the modules call; needs the database of vuln.go.dev; MODULES='. containers' chooses
	.ci/vuln $(MODULES)

$(GOVULNCHECK): tools/go.mod
	$(GO) -C tools build -o ../bin/ golang.org/x/vuln/cmd/govulncheck

MUTANTS ?=
.PHONY: mutants
mutants: ## put bugs into the adapters, one at a time, and report those that no test notices; MUTANTS='-engine sqlite' chooses
	$(GO) run ./conformance/mutants $(MUTANTS)

FUZZTIME ?= 1m
# Prints each target: its package's directory and its name.
fuzz_targets = grep -rn --include='*_test.go' '^func Fuzz' . | sed 's|^\./\(.*\)/[^/]*:[0-9]*:func \(Fuzz[A-Za-z]*\).*|\1 \2|'
.PHONY: fuzz fuzz-corpus
fuzz: ## each fuzz target for FUZZTIME (1m); an input that fails is kept in the package's testdata
	@$(fuzz_targets) | while read -r package target; do \
		echo "$$package $$target"; $(GO) test ./$$package -run '^$$' -fuzz "^$$target$$" -fuzztime $(FUZZTIME) -fuzzminimizetime 200ms </dev/null || exit 1; \
	done

# The cache of the go command has the inputs that reached code which no input before them had reached.
fuzz-corpus: ## keep inputs that make fuzz found in the packages' testdata: 40 of each target, of all sizes up to 4 KiB
	@cache="$$($(GO) env GOCACHE)/fuzz/$$($(GO) list -m)"; $(fuzz_targets) | while read -r package target; do \
		test -d "$$cache/$$package/$$target" || continue; \
		to="$$package/testdata/fuzz/$$target"; mkdir -p "$$to"; \
		find "$$cache/$$package/$$target" -type f -size -4097c -printf '%s %p\n' | sort -n \
			| awk -v want="$$((40 - $$(ls "$$to" | wc -l)))" '{all[NR] = $$2} END {n = NR < want ? NR : want; for (i = 0; i < n; i++) print all[int((i + 0.5) * NR / n) + 1]}' \
			| xargs -r cp -n -t "$$to"; \
		echo "$$to: $$(ls "$$to" | wc -l)"; \
	done

.PHONY: bench
bench: ## the benchmark of all engines and their peers, into bench.html; minutes of building the first time
	$(GO) -C $(PEERS) run ./cmd/tapestore bench --all --format html --out $(CURDIR)/bench.html

.PHONY: k8s
k8s: $(STATICCHECK) ## the module for client-go's leader election: lint and tests
	$(GO) -C $(K8S) vet ./... && (cd $(K8S) && $(CURDIR)/$(STATICCHECK) ./...) && $(GO) -C $(K8S) test -count=1 ./...

.PHONY: ui-test
ui-test: $(STATICCHECK) ## the page of the inspector in a headless Chromium; SCREENSHOTS=1 takes those of docs/inspector.md
	$(GO) -C $(UI) vet ./... && (cd $(UI) && $(CURDIR)/$(STATICCHECK) ./...) && $(GO) -C $(UI) test -count=1 ./...

.PHONY: peers
peers: $(STATICCHECK) ## the peers of the benchmark: lint and tests
	for module in $(PEERS) $(TEMPORAL); do \
		$(GO) -C $$module vet ./... && (cd $$module && $(CURDIR)/$(STATICCHECK) ./...) && $(GO) -C $$module test -count=1 ./... || exit 1; \
	done

BENCH ?= .
.PHONY: gobench
gobench: ## the Go benchmarks; BENCH=regexp chooses
	$(GO) test -run '^$$' -bench '$(BENCH)' -benchmem -timeout 60m ./...

.PHONY: demo
demo: ## workers on one run: one killed, one paused beyond its lease, nothing done twice
	$(GO) run ./demo

# Hugo is a tool of the module docs/site. Compiling it takes minutes the first time.
HUGO := bin/hugo

$(HUGO): $(SITE)/go.mod
	CGO_ENABLED=0 $(GO) -C $(SITE) build -o ../../bin/ github.com/gohugoio/hugo

.PHONY: site-packages
site-packages:
	@mkdir -p $(SITE)/assets
	@for module in . $(K8S); do \
		$(GO) -C $$module list -find -f '{{.ImportPath}}	{{.Doc}}' ./... || exit 1; \
	done >$(SITE)/assets/packages.tmp
	@grep -v '^[^	]*/internal' $(SITE)/assets/packages.tmp | LC_ALL=C sort >$(SITE)/assets/packages.csv && rm $(SITE)/assets/packages.tmp

.PHONY: site
site: $(HUGO) site-packages ## the documentation site, into dist/site, with its links checked
	rm -rf dist/site
	cd $(SITE) && HUGO_PARAMS_COMMIT=$$(git rev-parse HEAD) $(CURDIR)/$(HUGO) build --panicOnWarning --destination $(CURDIR)/dist/site
	$(GO) -C $(SITE) vet ./... && $(GO) -C $(SITE) test -count=1 ./...

.PHONY: site-serve
site-serve: $(HUGO) site-packages ## the documentation site on loopback, built again at each change
	cd $(SITE) && $(CURDIR)/$(HUGO) server --bind 127.0.0.1 --renderToMemory

.PHONY: generate
generate: ## the Go code of the wire protocol
	$(GO) generate ./...
