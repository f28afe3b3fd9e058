#!/bin/sh
# The tunnels that Keiro is measured beside, from their Go modules, into benches/tunnel/target/peers.
# Needs Go 1.26 or later (Nebula asks for a newer toolchain, which Go fetches) and the network, once.
set -eu
wireguard=v0.0.0-20260522210424-ecfc5a8d5446
nebula=v1.12.0
# What Nebula asks for is not on the module proxy in all versions: the fork of netlink is taken
# from its origin, gVisor (a checksum of it is used) from the newest there is, and dnsconfig from
# peers/dnsconfig, which says why.
netlink=v1.3.1
gvisor=v0.0.0-20260905035102-160fafc42237

here=$(cd "$(dirname "$0")" && pwd)
work=$here/target/peers
command -v go >/dev/null || {
    echo "peers.sh: Go is needed; https://go.dev/dl or Debian's golang" >&2
    exit 1
}
mkdir -p "$work/build"
cd "$work/build"
export GOFLAGS="-buildvcs=false -mod=mod" GOTOOLCHAIN=auto
if [ ! -x "$work/wireguard-go" ]; then
    GOBIN=$work/build go install "golang.zx2c4.com/wireguard@$wireguard"
    mv wireguard "$work/wireguard-go"
fi
if [ ! -x "$work/nebula" ]; then
    go mod download "github.com/vishvananda/netlink@$netlink"
    rm -rf netlink
    cp -r "$(go env GOMODCACHE)/github.com/vishvananda/netlink@$netlink" netlink
    chmod -R u+w netlink
    sed -i 's#^module .*#module github.com/DefinedNet/netlink#' netlink/go.mod
    rm -f go.mod go.sum
    cat >go.mod <<MODULE
module keiro/bench/peers

go 1.27.3

require github.com/slackhq/nebula $nebula

replace github.com/DefinedNet/netlink => ./netlink

replace github.com/DefinedNet/dnsconfig => $here/peers/dnsconfig

replace gvisor.dev/gvisor => gvisor.dev/gvisor $gvisor
MODULE
    for program in nebula-cert nebula; do
        go build -o "$work/$program" "github.com/slackhq/nebula/cmd/$program"
    done
fi
echo "$work: wireguard-go $wireguard, nebula $nebula"
