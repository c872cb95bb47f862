# Tapestore. `make` shows what there is; only Go (and make) must be installed.

GO ?= go

# Nothing here needs the commit stamped into a binary, and stamping fails in a
# checkout that belongs to another user.
export GOFLAGS += -buildvcs=false

# Modules of their own: the example stands for an adapter outside this repository,
# and what starts containers stays out of what users of this one carry.
EXAMPLE := conformance/example
CONTAINERS := containers
MODULES := $(EXAMPLE) $(CONTAINERS)

.DEFAULT_GOAL := help

.PHONY: help
help: ## show this
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: run
run: ## serve Tape on a SQLite file, ./tape.db
	$(GO) run ./cmd/tapestore serve --store sqlite:./tape.db

.PHONY: test
test: lint ## what CI runs: lint, then all tests, with the race detector where it can be built
	@set -e; \
	if $(RACE_WORKS); then \
		: "-race also checks unsafe pointers. Nothing written here has any, only generated code; SQLite, which is full of them, is twice as fast without."; \
		race="-race -gcflags=all=-d=checkptr=0"; \
		echo "race detector: on"; \
	else \
		race=; \
		echo "race detector: OFF. It needs cgo and a C compiler, and '$$($(GO) env CC)' cannot build it here (CGO_ENABLED=$$($(GO) env CGO_ENABLED))."; \
	fi; \
	: "Packages that start engines wait as much as they compute: three at a time, on two cores too."; \
	echo "go test $$race ./..."; \
	$(GO) test $$race -count=1 -p 3 -timeout 40m ./...; \
	for module in $(MODULES); do \
		echo "go test $$race ./... ($$module)"; \
		$(GO) -C $$module test $$race -count=1 -parallel 6 -timeout 20m ./...; \
	done

.PHONY: containers
containers: ## the suite on engines in containers; needs Docker
	$(GO) -C $(CONTAINERS) test -race -count=1 -parallel 6 -timeout 20m ./...

# An empty test of a small package of the standard library: it links only if the
# compiler, its headers and the race detector's runtime are all there.
RACE_WORKS = command -v "$$($(GO) env CC | cut -d ' ' -f 1)" >/dev/null && \
	$(GO) test -race -run '^$$' errors >/dev/null 2>&1

# Lint tools are pinned in the module tools, so that users of the library never
# see them.
STATICCHECK := bin/staticcheck

.PHONY: lint
lint: ## gofmt, go vet, staticcheck
	@unformatted=$$($$($(GO) env GOROOT)/bin/gofmt -l .); \
	if [ -n "$$unformatted" ]; then echo "not formatted (gofmt -w them):"; echo "$$unformatted"; exit 1; fi
	$(GO) vet ./...
	$(GO) -C tools vet ./...
	@set -e; for module in $(MODULES); do echo "$(GO) -C $$module vet ./..."; $(GO) -C $$module vet ./...; done
	$(GO) -C tools build -o ../bin/ honnef.co/go/tools/cmd/staticcheck
	$(STATICCHECK) ./...
	cd $(CONTAINERS) && $(CURDIR)/$(STATICCHECK) ./...

BENCH ?= .
.PHONY: bench
bench: ## the Go benchmarks; BENCH=regexp chooses
	$(GO) test -run '^$$' -bench '$(BENCH)' -benchmem -timeout 60m ./...

.PHONY: demo
demo: ## workers on one run: one killed, one paused beyond its lease, nothing done twice
	$(GO) run ./demo

.PHONY: generate
generate: ## the Go code of the wire protocol
	$(GO) generate ./...
