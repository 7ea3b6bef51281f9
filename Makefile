# smolet: everything a developer or a CI machine calls. `make help` lists it.
# Nothing has to be prepared: each target installs what it needs on Debian 12 (root, apt) and keeps the rest of the
# machine as it is. Build results stay in target/, tools in .cache/.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.NOTPARALLEL:
.DELETE_ON_ERROR:
.SUFFIXES:

# Plain output: these logs are read in CI.
export CARGO_TERM_COLOR := never
export CARGO_TERM_PROGRESS_WHEN := never

CARGO := cargo
TEST := $(CARGO) test --locked
# What is measured is what devices get: linked with musl. A folder of its own, so that ARM builds can go on beside it.
ifeq ($(shell uname -m),x86_64)
STATIC := x86_64-unknown-linux-musl
RELEASE := target/static/$(STATIC)/release/smolet
else
RELEASE := target/release/smolet
endif
# Debian's names of ARM's architectures, with the build of each; armhf is ARMv6, for every Pi. With armel=arm-unknown-linux-musleabi
# there is one for ARMv6 without a FPU, which no test runs.
ARM_PACKAGES ?= arm64=aarch64-unknown-linux-musl armhf=arm-unknown-linux-musleabihf
VERSION := $(shell sed -n 's/^version = "\(.*\)"$$/\1/p' Cargo.toml | head -n 1)
PACKAGE := target/packages/smolet_$(VERSION)_amd64.deb
# The first promises of docs/promises.md: the binary, and one without TLS, which is measured on ARM.
SIZE_MAX := 6815744
SIZE_MAX_PLAIN := 4194304
# Of the tests most wait most of the time: more at once than there are processors.
THREADS := $(shell echo $$((2 * $$(nproc))))
# Of those in a cluster some run on real time, and wait for nearly all of it.
CLUSTER_THREADS := $(shell echo $$((4 * $$(nproc))))
# The tests that `cargo test` runs: but for the seven that Cargo.toml leaves to targets of their own.
TESTS := $(filter-out attack board embedded network real sim systemd,$(notdir $(patsubst %/main.rs,%,$(wildcard tests/*/main.rs))))
# Of the attacks those that run one at a time: beside others it would be the machine whose silence is measured.
ATTACKS_ALONE := silence:: text_that_grows_when_it_is_escaped
# The emulated board: its architecture, with Debian's name; Debian's release; its memory in MiB; how often its power is cut.
ARCH ?= arm64
SUITE ?= bookworm
MEMORY ?= 1024
CUTS ?= 100
CUTS_SHORT := 2
BOARD_IMAGE = .cache/board/$(SUITE)-$(ARCH)$(if $(filter embedded,$(RUNTIME)),-embedded)$(if $(SELINUX),-selinux)
# What the tests on an emulated kernel need of it.
KERNEL_MODULES := wireguard veth bridge vxlan nf_tables nft_masq nft_chain_nat nft_ct
# Processes that share the tests on a real containerd.
SHARES := 1 2 3
# One of 64 bits, without TLS, and one of 32, with it; `make arm-all` has them all.
ARM_TARGETS ?= aarch64-unknown-linux-musl armv7-unknown-linux-musleabihf
ARM_TARGETS_ALL := aarch64-unknown-linux-musl armv7-unknown-linux-musleabihf arm-unknown-linux-musleabihf \
	x86_64-unknown-linux-musl
DEMO_DIR := .cache/demo

ifdef STATIC
build-release = @ARM_TARGET_DIR=$(CURDIR)/target/static cross/arm.sh release $(STATIC) >/dev/null
else
build-release = @$(CARGO) build --release --locked --quiet
endif

step = @printf '\n== %s  %(%H:%M:%S)T\n' '$(1)' -1

# How long `make fuzz` runs each target.
FUZZ_SECONDS ?= 600

.PHONY: help demo demo-installed test lint fmt clippy deny deny-here unit unit-beside-release sim proto vectors attack embedded kernel network real real-embedded real-crio systemd board board-image board-short real-beside-others size leftovers sweep package packages dist dist-parts dist-of-parts pages arm arm-build arm-all bench fuzz fuzz-build clean setup \
	setup-rust release

help:  ## this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/make \1\t\2/p' Makefile | expand -t 20

demo: setup  ## runs tests/manifests on a private containerd; Ctrl-C ends it. ONCE=1: checks the pods and ends by itself. RUNTIME=embedded: without containerd
	@$(CARGO) build --release --locked --quiet
	@ONCE='$(ONCE)' RUNTIME='$(RUNTIME)' tests/env/demo.sh target/release/smolet $(DEMO_DIR) tests/manifests

demo-installed: setup  ## the demo once, with the program that cargo installs
	@$(CARGO) install --locked --quiet --no-track --path . --target-dir target --root $(CURDIR)/target/tmp/cargo
	@ONCE=1 RUNTIME='$(RUNTIME)' tests/env/demo.sh target/tmp/cargo/bin/smolet $(DEMO_DIR) tests/manifests

test: setup sweep fmt unit-beside-release vectors network size attack embedded systemd real-beside-others leftovers  ## every check and test, the ones on a real containerd and on the embedded runtime included
	@printf '\nmake test: all passed\n'

lint: fmt clippy  ## rustfmt and clippy

fmt: setup-rust
	$(call step,rustfmt)
	@$(CARGO) fmt --all --check
	@$(CARGO) fmt --manifest-path fuzz/Cargo.toml --check

clippy: setup-rust
	$(call step,clippy)
	@$(CARGO) clippy --locked --all-targets --quiet -- -D warnings
	@$(CARGO) clippy --locked --test real --test systemd --test board --test attack --test sim --test embedded --test network --quiet -- -D warnings
	@$(CARGO) clippy --locked --no-default-features --lib --profile test --quiet -- -D warnings -A clippy::all -A clippy::pedantic

deny: setup-rust  ## licences, sources and banned crates of the dependencies
	$(call step,cargo-deny)
	@tests/env/setup.sh cargo-deny
	@PATH="$$PWD/.cache/tools/bin:$$PATH" cargo-deny --log-level warn check --show-stats licenses bans sources

# Built from its source it takes as long as all of smolet: where it is not there, tests/repository/dependencies.rs holds the same rules of
# this machine's dependencies.
deny-here:
	@if PATH="$$PWD/.cache/tools/bin:$$PATH" command -v cargo-deny >/dev/null; then $(MAKE) --no-print-directory deny; \
	else printf '\n== cargo-deny\n%s\n' 'not here (make deny installs it): tests/repository/dependencies.rs has held its rules'; fi

unit: setup-rust  ## unit and integration tests that need no runtime, but for the simulation
	$(call step,unit and integration tests)
	@$(TEST) --no-run
	@RUST_TEST_THREADS=$(THREADS) $(TEST) --lib --bins $(addprefix --test ,$(filter-out cluster,$(TESTS))) -- --quiet
	$(call step,a node of a cluster)
	@RUST_TEST_THREADS=$(CLUSTER_THREADS) $(TEST) --test cluster -- --quiet

# The one is bound to one processor most of the time, and so are the others.
unit-beside-release: setup-rust
	@mkdir -p target/tmp; \
	$(MAKE) --no-print-directory release >target/tmp/release.log 2>&1 & release=$$!; \
	trap 'kill $$release 2>/dev/null || true' EXIT; \
	unit=0; $(MAKE) --no-print-directory unit || unit=$$?; \
	rest=0; wait $$release || rest=$$?; \
	cat target/tmp/release.log; exit $$((unit | rest))

sim: setup-rust  ## thousands of node-hours in virtual time, with faults
	$(call step,simulation)
	@$(TEST) --test sim -- --quiet

proto: setup-rust  ## compiles proto/ to src/proto/
	@SMOLET_PROTO=write $(TEST) --quiet --test repository -- proto_table::

vectors: setup-rust  ## the pure core against the kubelet's own answers: agree/total of each set
	$(call step,vectors)
	@$(TEST) --quiet --test vectors -- --nocapture --test-threads=1 | sed -u 's/^\.\+//'

network: setup release  ## services on the kernel's nf_tables; two nodes of a cluster with pods of their own; in network namespaces
	$(call step,services and two nodes in network namespaces)
	@SMOLET_BIN=$(CURDIR)/$(RELEASE) $(TEST) --quiet --test network -- --nocapture

# This machine's kernel may have no WireGuard: the tests say then that it is missing.
kernel: setup-rust  ## the pods' network on Debian's kernel, emulated, which has WireGuard; some minutes
	$(call step,links between nodes on an emulated kernel)
	@tests/env/setup.sh kernel; mkdir -p target/tmp
	@$(TEST) --lib --test cluster --no-run 2>&1 | tee target/tmp/kernel.log
	@for of in 'src/lib.rs flannel::network' 'tests/cluster/main.rs flannel::'; do \
		program=$$(sed -n "s|.*Executable .*$${of% *} (\(.*\))|\1|p" target/tmp/kernel.log); \
		tests/env/kernel.sh .cache/kernel '$(KERNEL_MODULES)' "$$program" --test-threads 1 "$${of#* }" | tee target/tmp/kernel-tests.log; \
		grep -q '^running [1-9]' target/tmp/kernel-tests.log; \
	done

size: release  ## the release binary is static and as small as promised
	$(call step,size of the release binary)
	@size=$$(stat -c %s $(RELEASE)); echo "$(RELEASE): $$size of at most $(SIZE_MAX) bytes"; [ $$size -le $(SIZE_MAX) ]
	@if readelf -lW $(RELEASE) | grep INTERP; then echo "$(RELEASE) needs a shared C library" >&2; exit 1; fi

attack: setup release  ## the release binary under attack, by manifests, the runtime, containers and clients: it keeps to 16 MiB and is never silent for 250 ms
	$(call step,memory under attack)
	@SMOLET_BIN=$(CURDIR)/$(RELEASE) $(TEST) --quiet --test attack -- --nocapture --test-threads=3 $(addprefix --skip ,$(ATTACKS_ALONE))
	$(call step,silence under attack)
	@SMOLET_BIN=$(CURDIR)/$(RELEASE) $(TEST) --quiet --test attack -- --nocapture --test-threads=1 $(ATTACKS_ALONE)

# Shares side by side, each with a runtime of its own: they wait most of the time. $(1): the name of their folders; $(2): the runtime.
real-shares = @trap 'for share in $(SHARES); do tests/env/runtime.sh down target/tmp/$(1)-$$share; done' EXIT; mkdir -p target/tmp; \
	export SMOLET_BIN=$(CURDIR)/$(RELEASE) SMOLET_TEST_RUNTIME=$(2); shares=(); failed=0; \
	for share in $(SHARES); do \
		SMOLET_TEST_SHARE=$$share/$(words $(SHARES)) $(TEST) --quiet --test real -- --nocapture \
			>target/tmp/$(1)-$$share.log 2>&1 & shares+=($$!); \
	done; \
	for share in $(SHARES); do wait "$${shares[share - 1]}" || failed=1; cat target/tmp/$(1)-$$share.log; done; exit $$failed

real: setup release  ## the release binary on private containerds
	$(call step,tests on a real containerd)
	$(call real-shares,real,containerd)

real-embedded: setup release  ## the same tests on private embedded runtimes
	$(call step,the same tests on the embedded runtime)
	$(call real-shares,embedded,embedded)

real-crio: setup release  ## the same tests on private CRI-Os. CRIO=FILE: the program, with pinns and conmon beside it; CRIO_EVENTS=false: without its events
	$(call step,the same tests on CRI-O)
	$(call real-shares,crio,crio)

embedded: setup release  ## the release binary as the runtime of its own containers, with a real OCI runtime and CNI plugins
	$(call step,tests of the embedded runtime)
	@tests/env/setup.sh crun criu
	@PATH="$(CURDIR)/.cache/tools/criu/bin:$$PATH" SMOLET_BIN=$(CURDIR)/$(RELEASE) $(TEST) --quiet --test embedded -- --nocapture --test-threads=$(THREADS)
	$(call step,pods of an agent that runs them itself)
	@ONCE=1 RUNTIME=embedded tests/env/demo.sh $(RELEASE) target/tmp/demo-embedded tests/manifests

systemd: setup package  ## the release binary with the cgroup driver systemd and as a service, on a systemd and a containerd of its own
	$(call step,tests on a real systemd)
	@tests/env/setup.sh systemd openrc sign sbom
	@trap 'for name in v1 v2 agent package package-dpkg takeover openrc archive archive-openrc apk; do tests/env/systemd.sh down target/tmp/systemd-$$name; done' EXIT; \
	SMOLET_BIN=$(CURDIR)/$(RELEASE) SMOLET_PACKAGE=$(CURDIR)/$(PACKAGE) \
	$(TEST) --quiet --test systemd -- --nocapture --test-threads=4

board: ARM_TARGET = $(patsubst $(ARCH)=%,%,$(filter $(ARCH)=%,$(ARM_PACKAGES)))
board: setup-rust pages  ## an emulated ARM board: the package, pods, reboots, clocks, full disks, CUTS (100) power cuts. RUNTIME=embedded: without containerd; SUITE=trixie; SELINUX=1; MEMORY=512; ARCH=armhf; STEPS='WORDS': some of it; BOARD_BINARY=FILE: that program
	$(call step,a board of $(ARCH))
	@$(MAKE) --no-print-directory board-image & image=$$!; \
	trap 'kill $$image 2>/dev/null || true' EXIT; \
	$(if $(BOARD_BINARY),,cross/arm.sh release $(ARM_TARGET) >/dev/null;) \
	$(TEST) --quiet --test board --no-run; \
	wait $$image
	@dist/build.sh $(ARCH) "$(or $(BOARD_BINARY),$$(cross/arm.sh path $(ARM_TARGET))/release/smolet)" target/pages target/packages >/dev/null
	@trap 'tests/env/board.sh down target/tmp/board' EXIT; \
	export IMAGE=$(CURDIR)/$(BOARD_IMAGE) ARCH=$(ARCH) SELINUX=$(SELINUX) MEMORY=$(MEMORY) SMOLET_BOARD_CUTS=$(CUTS) SMOLET_BOARD_RUNTIME=$(RUNTIME); \
	SMOLET_PACKAGE=$(CURDIR)/target/packages/smolet_$(VERSION)_$(ARCH).deb $(TEST) --quiet --test board -- $(STEPS)

board-image:  ## the system of that board alone
	@tests/env/setup.sh board
	@SUITE=$(SUITE) RUNTIME=$(RUNTIME) SELINUX=$(SELINUX) tests/env/board-image.sh $(ARCH) $(BOARD_IMAGE)

board-short:  ## the same in short, in twelve minutes: the most valuable steps, two power cuts
	@SMOLET_BOARD_SHORT=1 $(MAKE) --no-print-directory board CUTS=$(CUTS_SHORT)

# The one waits most of the time, on either runtime, the others compute. Their tests are built first: clippy keeps the folder to itself.
real-beside-others: setup release
	@mkdir -p target/tmp; $(TEST) --quiet --test real --test sim --no-run; \
	nice -n 10 $(MAKE) --no-print-directory --keep-going sim deny-here clippy >target/tmp/others.log 2>&1 & others=$$!; \
	$(MAKE) --no-print-directory real-embedded >target/tmp/real-embedded.log 2>&1 & embedded=$$!; \
	trap 'kill $$others $$embedded 2>/dev/null || true' EXIT; \
	real=0; $(MAKE) --no-print-directory real || real=$$?; \
	too=0; wait $$embedded || too=$$?; cat target/tmp/real-embedded.log; \
	rest=0; wait $$others || rest=$$?; \
	cat target/tmp/others.log; exit $$((real | too | rest))

sweep:  ## removes what earlier test runs left that were killed
	@tests/env/runtime.sh sweep

leftovers:  ## fails when a test left a process, mount, bridge or rule behind
	$(call step,leftovers)
	@for share in $(SHARES); do \
		for name in real embedded; do tests/env/runtime.sh leftovers target/tmp/$$name-$$share; done; \
	done
	@tests/env/runtime.sh leftovers && echo none

packages: package  ## Debian packages for amd64, arm64 and armhf (or ARM_PACKAGES), below target/packages
	$(call step,packages)
	@cross/arm.sh release $(foreach package,$(ARM_PACKAGES),$(lastword $(subst =, ,$(package)))) >/dev/null
	@for package in $(ARM_PACKAGES); do \
		dist/build.sh $${package%=*} "$$(cross/arm.sh path $${package#*=})/release/smolet" target/pages target/packages >/dev/null; \
	done
	@cd target/packages && stat -c '%n: %s bytes' smolet_$(VERSION)_*.deb

# Those of this machine alone, from the binary that is tested.
package: release pages
ifdef STATIC
	@for format in deb archive apk ipk; do \
		dist/build.sh amd64 $(RELEASE) target/pages target/packages $$format >/dev/null; \
	done
endif

dist: release pages  ## a release, in target/dist: packages of all kinds and architectures, source, SBOM, sums. MINISIGN_KEY, COSIGN_KEY, APK_KEY: keys that sign
	$(call step,release)
	@tests/env/setup.sh sbom sign
	@cross/arm.sh release $(foreach package,$(ARM_PACKAGES),$(lastword $(subst =, ,$(package)))) >/dev/null
	@dist/release.sh target/pages target/dist amd64=$(STATIC)=$(RELEASE) \
		$(foreach package,$(ARM_PACKAGES),$(package)=$$(cross/arm.sh path $(lastword $(subst =, ,$(package))))/release/smolet)
	@cd target/dist && cat SHA256SUMS

dist-parts: dist  ## target/parts.tar: programs, pages, SBOMs and copyrights, of which `make dist-of-parts` makes the same release elsewhere
	@rm -rf target/parts && mkdir -p target/parts && cp -r target/pages target/dist/*.cdx.json target/parts/
	@for arch in amd64 $(foreach package,$(ARM_PACKAGES),$(firstword $(subst =, ,$(package)))); do \
		tar -xzOf target/dist/smolet_$(VERSION)_linux_$$arch.tar.gz --wildcards '*/copyright' >target/parts/$$arch.copyright || exit; done
	@cp $(RELEASE) target/parts/amd64
	@$(foreach package,$(ARM_PACKAGES),cp "$$(cross/arm.sh path $(lastword $(subst =, ,$(package))))/release/smolet" target/parts/$(firstword $(subst =, ,$(package))) &&) true
	@tar -cf target/parts.tar -C target parts

dist-of-parts:  ## the release of target/parts.tar, signed: nothing is compiled or downloaded where the keys are
	@rm -rf target/parts && tar -xf target/parts.tar -C target
	@PARTS=$(CURDIR)/target/parts dist/release.sh target/parts/pages target/dist amd64=$(STATIC)=target/parts/amd64 \
		$(foreach package,$(ARM_PACKAGES),$(package)=target/parts/$(firstword $(subst =, ,$(package))))
	@cd target/dist && cat SHA256SUMS

pages: setup-rust  ## man pages and completions, below target/pages
	@rm -rf target/pages
	@SMOLET_PAGES=$(CURDIR)/target/pages $(TEST) --quiet --test repository -- pages::

arm: setup-rust  ## builds for aarch64 and armv7 (or ARM_TARGETS), runs the tests under qemu, holds the size
	$(call step,$(ARM_TARGETS))
	@SIZE_MAX=$(SIZE_MAX) SIZE_MAX_PLAIN=$(SIZE_MAX_PLAIN) cross/arm.sh check $(ARM_TARGETS)

arm-build: setup-rust  ## the builds of `make arm` alone
	@cross/arm.sh build $(ARM_TARGETS)

arm-all:  ## the same for armv6 and x86-64 with musl too, with the long tests
	@ARM_LONG=1 TEST_SECONDS=1800 ARM_TESTS='agent parts program vectors memory' \
	$(MAKE) --no-print-directory arm ARM_TARGETS='$(ARM_TARGETS_ALL)'

# `cargo bench` puts a binary of its own profile into the release binary's place, so that is set aside first.
bench: setup release  ## benchmarks, and the promises on a real containerd. KUBELET=FILE: that kubelet too. PICTURE=FILE: a chart
	@mkdir -p target/tmp && cp $(RELEASE) target/tmp/smolet-measured
	$(call step,small parts)
	@$(CARGO) bench --locked --bench plan --bench render --bench status
	$(call step,the whole agent on a real containerd)
	@trap 'for one in bench bench-embedded; do tests/env/runtime.sh down target/tmp/$$one; done' EXIT; \
	SMOLET_BIN=$(CURDIR)/target/tmp/smolet-measured SMOLET_CONFIG=$(CURDIR)/tests/env/watched.yaml $(CARGO) bench --locked --bench node

fuzz: fuzz-build  ## fuzzing, FUZZ_SECONDS (600) for each target; a finding fails it and is kept in target/fuzz/artifacts
	$(call step,fuzzing)
	@fuzz/run.sh for $(FUZZ_SECONDS)

fuzz-build: setup-rust
	@tests/env/setup.sh fuzz
	@fuzz/run.sh build

release: setup-rust  ## the release binary that is measured
	$(build-release)

setup: setup-rust
	@tests/env/setup.sh runtime

setup-rust:
	@tests/env/setup.sh rust

clean:  ## removes what was built, the tools, and what a demo left
	@tests/env/runtime.sh down $(DEMO_DIR) 2>/dev/null || true
	@rm -rf target .cache
