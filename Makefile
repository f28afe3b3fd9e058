# Keiro's tasks; `make help` lists them.

CARGO ?= cargo
PREFIX ?= /usr/local
DESTDIR ?=

keiro := target/release/keiro
keiro-lab := target/release/keiro-lab
keiro-web := target/release/keiro-web
bindir := $(DESTDIR)$(PREFIX)/bin
datadir := $(DESTDIR)$(PREFIX)/share
unitdir := $(DESTDIR)$(PREFIX)/lib/systemd/system
sysusersdir := $(DESTDIR)$(PREFIX)/lib/sysusers.d

.DEFAULT_GOAL := help
.PHONY: help setup packages build build-lab demo test test-quick test-web test-dashboards lint mutants rounds test-guest accuracy bench \
	bench-tunnel bench-egress experiments figures soak fuzz bpf man install install-lab deb test-package \
	static test-static oci test-oci sbom release test-release test-reproducible

help: ## what there is to make
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-17s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: ## install the Debian packages that are missing here
	@scripts/setup tests

packages: # only what building needs
	@scripts/setup

build: packages ## the commands keiro and keiro-web, in target/release
	@scripts/compile keiro-cli keiro-web

build-lab: packages ## keiro and keiro-lab, which makes laboratories and runs experiments
	@scripts/compile keiro-cli keiro-web keiro-lab-cli

demo: ## five applications over two paths, about a minute; in a laboratory as root, else simulated
	@scripts/demo

# Clippy and the tests share one profile and one feature set, so that build scripts (with a C
# library among them) run once. Clippy has compiled the examples; nothing runs them here.
test: setup lint ## everything that a change must pass
	$(CARGO) xtask test $(if $(CI),--strict)

test-quick: packages ## the tests that depend on nothing but their inputs, without root, in 2 to 4 minutes
	$(CARGO) xtask test --pure

test-dashboards: packages ## dashboards and alerts with promtool and a real Prometheus on a pair of gateways
	@scripts/setup dashboards
	$(CARGO) test --locked --package keiro-dashboards -- --include-ignored
	$(CARGO) test --locked --workspace --test dashboards -- --include-ignored --nocapture

lint: packages ## formatting, clippy, words, links and circles of imports
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets --locked -- -D warnings
	$(CARGO) xtask words
	$(CARGO) xtask links
	$(CARGO) xtask cycles

mutants: packages ## mutation tests of the lines changed since BASE (origin/main), or of FILES
	@scripts/mutants $(BASE)

rounds: setup ## twenty rounds of the pure and ten of the laboratory tests, half beside two busy loops
	$(CARGO) xtask test --pure --rounds 10
	$(CARGO) xtask test --pure --rounds 10 --busy 2
	$(CARGO) xtask test --laboratory --rounds 5
	$(CARGO) xtask test --laboratory --rounds 5 --busy 2

test-web: setup ## the pages in Chromium: axe, live updates, requests, screenshots in target/web
	@scripts/setup web
	scripts/test-web

test-guest: build ## the egress suite with FRR on Debian's kernel and VRF devices, emulated (x86_64)
	@scripts/setup guest
	scripts/test-guest

accuracy: setup ## how near `keiro measure` comes to known networks, twelve minutes (needs root)
	$(CARGO) run --release --locked --package keiro-measure --example accuracy

bench: packages ## benchmarks
	$(CARGO) bench --workspace --locked

bench-tunnel: build ## the IP tunnel beside wireguard-go and Nebula (needs root and Go)
	benches/tunnel/peers.sh
	$(CARGO) run --release --quiet --locked --package bench-tunnel

bench-egress: build ## full tables into keiro egress, BIRD and FRR (needs root)
	@scripts/setup routers
	$(CARGO) run --release --quiet --locked --package bench-egress

experiments: build-lab ## every experiment in full, results in out/ (needs root)
	@scripts/experiments

figures: build-lab ## what documents show of EXPERIMENTS (all), from this commit, into docs/ and out/figures
	@scripts/figures $(EXPERIMENTS)

soak: build-lab ## an hour of traffic with paths that come and go (needs root)
	@scripts/soak

fuzz: ## inputs that reach new code, FUZZ_SECONDS (60) for each of seven targets
	@scripts/setup fuzz
	@scripts/fuzz

bpf: ## the BPF object of FlowStats from its source (clang-14, libbpf-dev)
	$(MAKE) -C crates/flowstats/bpf

man: build-lab ## man pages, in target/man
	$(keiro) man --output target/man
	$(keiro-web) man --output target/man
	$(keiro-lab) man --output target/man

deb: build-lab ## the Debian packages keiro and keiro-lab, in target/package
	@scripts/setup package
	@scripts/package

test-package: deb ## installs the packages in a copy of this system, upgrades and purges them (needs root)
	@scripts/setup test-package
	@scripts/test-package

static: ## static keiro commands for x86_64 and aarch64, in target/static
	@scripts/setup static
	@scripts/static $(ARCHITECTURES)

test-static: static ## starts them where there is no other file, aarch64 under QEMU (needs root)
	@scripts/test-static $(ARCHITECTURES)

oci: static ## an OCI image of these, in target/oci
	@scripts/oci

test-oci: oci ## reads every digest of the image and starts its command in namespaces (needs root)
	@scripts/test-oci

sbom: packages ## bills of materials of the commands (CycloneDX), in target/sbom
	@scripts/sbom

release: deb static oci sbom ## all that a release consists of, with SHA256SUMS, in target/dist
	@scripts/dist

test-release: test-package test-static test-oci test-reproducible ## what a release must pass (needs root)

test-reproducible: packages ## builds the packages twice in two directories and compares them, or only PACKAGES
	@scripts/setup package
	@scripts/test-reproducible $(PACKAGES)

install: ## to $(DESTDIR)$(PREFIX), after `make build`; needs no Rust, so sudo will do
	@test -x $(keiro) -a -x $(keiro-web) || { echo 'install: $(keiro) or $(keiro-web) is not there; run make build first' >&2; exit 1; }
	install -D -m 755 $(keiro) $(bindir)/keiro
	install -D -m 755 $(keiro-web) $(bindir)/keiro-web
	install -d $(datadir)/man/man1 $(datadir)/doc/keiro/examples $(unitdir) $(sysusersdir) \
		$(datadir)/bash-completion/completions $(datadir)/zsh/site-functions \
		$(datadir)/fish/vendor_completions.d
	$(keiro) man --output $(datadir)/man/man1
	$(keiro-web) man --output $(datadir)/man/man1
	$(keiro) completion bash > $(datadir)/bash-completion/completions/keiro
	$(keiro) completion zsh > $(datadir)/zsh/site-functions/_keiro
	$(keiro) completion fish > $(datadir)/fish/vendor_completions.d/keiro.fish
	$(keiro-web) completion bash > $(datadir)/bash-completion/completions/keiro-web
	$(keiro-web) completion zsh > $(datadir)/zsh/site-functions/_keiro-web
	$(keiro-web) completion fish > $(datadir)/fish/vendor_completions.d/keiro-web.fish
	for unit in packaging/systemd/*; do \
		sed 's|/usr/bin/keiro|$(PREFIX)/bin/keiro|' $$unit > $(unitdir)/$${unit##*/} || exit 1; done
	install -m 644 packaging/sysusers.d/keiro.conf $(sysusersdir)/keiro.conf
	install -m 644 packaging/examples/* packaging/wireshark/keiro.lua $(datadir)/doc/keiro/examples/
	install -d $(datadir)/keiro/grafana $(datadir)/keiro/prometheus
	install -m 644 packaging/grafana/* $(datadir)/keiro/grafana/
	install -m 644 packaging/prometheus/* $(datadir)/keiro/prometheus/
	install -m 644 README.md CHANGELOG.md LICENSE-APACHE LICENSE-MIT $(datadir)/doc/keiro/
	@if [ -z '$(DESTDIR)' ] && [ -d /run/systemd/system ]; then systemd-sysusers && systemctl daemon-reload; \
		else echo 'installed; before the daemon is started: systemd-sysusers, systemctl daemon-reload'; fi

install-lab: ## keiro-lab to $(DESTDIR)$(PREFIX), after `make build-lab`; it runs the keiro of its own version
	@test -x $(keiro-lab) || { echo 'install-lab: $(keiro-lab) is not there; run make build-lab first' >&2; exit 1; }
	install -D -m 755 $(keiro-lab) $(bindir)/keiro-lab
	install -d $(datadir)/man/man1 $(datadir)/bash-completion/completions $(datadir)/zsh/site-functions \
		$(datadir)/fish/vendor_completions.d
	$(keiro-lab) man --output $(datadir)/man/man1
	$(keiro-lab) completion bash > $(datadir)/bash-completion/completions/keiro-lab
	$(keiro-lab) completion zsh > $(datadir)/zsh/site-functions/_keiro-lab
	$(keiro-lab) completion fish > $(datadir)/fish/vendor_completions.d/keiro-lab.fish
