# Everything that people and CI run. Needs Go, gcc (for the race detector), git
# and make, and for the tests of the page for people Chromium; the rest comes through
# the Go module proxy.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

GO ?= go
BIN := bin
PLUGIN := $(BIN)/azure-kms-plugin

VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo dev)
REVISION ?= $(shell git rev-parse HEAD 2>/dev/null)
# The commit's own time, so that two builds of one commit are the same bytes.
SOURCE_DATE_EPOCH ?= $(shell git log -1 --format=%ct 2>/dev/null || echo 0)

# Static, without paths of this machine and without a debugger's tables. The
# version comes from here and not from VCS stamping, which is off in a source
# archive and would make its binary differ from the same one built in a clone.
# grpcnotrace leaves out gRPC's debug pages: the templates behind them keep the
# linker from dropping unused methods, which costs a fifth of the binary and of
# the idle memory.
GO_BUILD := CGO_ENABLED=0 $(GO) build -tags grpcnotrace -trimpath -buildvcs=false -ldflags "-s -w -X main.version=$(VERSION) -X main.revision=$(REVISION)"

# Modules with Go code of ours. Each is linted, vetted and kept tidy.
MODULES := . test/vault test/web test

# The test module links kube-apiserver's code and etcd. With these settings its
# packages compile once for kube-apiserver, demo, tests and linters alike.
IN_TEST := cd test && CGO_ENABLED=0 GOFLAGS="$$GOFLAGS -trimpath -buildvcs=false"
export GOFLAGS

# Go says nothing while it compiles.
PATIENCE := The first time on a machine, etcd and kube-apiserver's encryption code are compiled: 5 to 16 minutes on two cores, without a word.

# Linters are pinned in modules of their own, so that they never move a version
# that the product links.
TOOL = $(GO) tool -modfile=$(CURDIR)/test/tools/go.mod
VULN = $(GO) tool -modfile=$(CURDIR)/test/tools/vuln.mod

.PHONY: help
help: ## This list
	@awk 'BEGIN { FS = ":.*## " } /^[a-z0-9-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: build
build: ## bin/azure-kms-plugin, static and stamped with the version
	$(GO_BUILD) -o $(PLUGIN) ./cmd/azure-kms-plugin

# The page for people is tested in a real browser.
.PHONY: browser
browser: ## Chromium for the tests of the page; root has it installed, on Debian
	@command -v chromium >/dev/null || { \
		[[ $$EUID == 0 ]] && command -v apt-get >/dev/null || { echo "chromium is missing, and only root on Debian or Ubuntu has it installed by itself: install it, so that \"chromium\" is in the PATH"; exit 1; }; \
		apt-get update -q && DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends chromium; }

.PHONY: test
test: build browser ## Every test but e2e, with the race detector on what we ship
	@[[ -x $(BIN)/demo ]] || echo "$(PATIENCE)"
	$(GO) test -race $(TESTFLAGS) ./...
	cd test/vault && $(GO) test -race $(TESTFLAGS) ./...
	cd test/web && $(GO) test $(TESTFLAGS) ./...
	$(IN_TEST) $(GO) test $(TESTFLAGS) $$($(GO) list ./... | grep -v /test/e2e)

.PHONY: demo
demo: build ## The whole path on this machine until Ctrl-C; ARGS=--once ends by itself
	@[[ -x $(BIN)/demo ]] || echo "$(PATIENCE)"
	$(IN_TEST) $(GO) build -o ../$(BIN)/demo ./demo
	exec $(BIN)/demo $(ARGS)

.PHONY: e2e
e2e: build ## The real kube-apiserver and etcd, built from their modules
	$(IN_TEST) $(GO) test -count=1 -v -timeout 60m -parallel $(E2E_PARALLEL) $(TESTFLAGS) ./e2e/...

# Control planes at the same time: most of them wait, most of the time. Each takes a
# third of a gigabyte, and a tenth of a core.
E2E_PARALLEL := 8

.PHONY: e2e-long
e2e-long: build ## The outages of e2e again, as long as in the field: about 40 minutes
	$(IN_TEST) $(GO) test -count=1 -v -timeout 150m -parallel $(E2E_PARALLEL) -run TestOutage $(TESTFLAGS) ./e2e/... -long

.PHONY: bench
bench: build ## Hold the design's numbers; PEER=/path measures another plugin beside ours
	$(IN_TEST) $(GO) build -o ../$(BIN)/bench ./bench
	$(IN_TEST) $(GO) build -tags grpcnotrace -ldflags "-s -w" -o ../$(BIN)/bench-floor ./bench/floor
	exec $(BIN)/bench -plugin $(PLUGIN) -floor $(BIN)/bench-floor -out $(BIN) $(if $(PEER),-peer $(PEER)) $(ARGS)

IMAGE ?= $(BIN)/azure-kms-plugin.oci.tar
IMAGE_NAME ?= azure-kms-plugin:$(VERSION)
# Defaults that the entry point sets, for platforms that fix the arguments.
IMAGE_ENTRY_ARGS ?=

.PHONY: image
image: ## bin/azure-kms-plugin.oci.tar for amd64 and arm64, without a container engine
	GOOS=linux GOARCH=amd64 $(GO_BUILD) -o $(BIN)/linux-amd64/azure-kms-plugin ./cmd/azure-kms-plugin
	GOOS=linux GOARCH=arm64 $(GO_BUILD) -o $(BIN)/linux-arm64/azure-kms-plugin ./cmd/azure-kms-plugin
	$(IN_TEST) $(GO) build -o ../$(BIN)/build-image ./image/cmd/build-image
	$(BIN)/build-image -out $(IMAGE) -name $(IMAGE_NAME) \
		-version $(VERSION) -revision "$(REVISION)" -created $(SOURCE_DATE_EPOCH) \
		-binary amd64=$(BIN)/linux-amd64/azure-kms-plugin -binary arm64=$(BIN)/linux-arm64/azure-kms-plugin \
		$(addprefix -entry-arg=,$(IMAGE_ENTRY_ARGS))

.PHONY: lint
lint: ## gofumpt, go vet and staticcheck on every module
	@out=$$($(TOOL) gofumpt -l $$(git ls-files -co --exclude-standard '*.go')); \
		if [[ -n $$out ]]; then echo "not formatted (make fmt):"; echo "$$out"; exit 1; fi
	@for m in $(MODULES); do echo "vet and staticcheck in $$m"; \
		(cd $$m && export CGO_ENABLED=0 GOFLAGS="$$GOFLAGS -trimpath -buildvcs=false" && $(GO) vet ./... && $(TOOL) staticcheck ./...); done

.PHONY: fmt
fmt: ## Format every Go file
	$(TOOL) gofumpt -w $$(git ls-files -co --exclude-standard '*.go')

.PHONY: tidy
tidy: ## Fail when a go.mod or go.sum is not what "go mod tidy" makes of it
	@for m in $(MODULES) test/tools; do echo "go mod tidy -diff in $$m"; (cd $$m && $(GO) mod tidy -diff); done

.PHONY: vulncheck
vulncheck: ## Look for known vulnerabilities; needs to reach the Go vulnerability database
	$(VULN) govulncheck ./...

.PHONY: clean
clean: ## Remove bin/
	rm -rf $(BIN)
