#!/usr/bin/env bash
# Finds a PostgreSQL and a Redis for tests, or starts its own, and prints the variables that say where they are:
#
#   eval "$(scripts/test-services.sh)"
#   scripts/test-services.sh --stop              ends its own servers, named by FOVEA_TEST_SERVICES
#   scripts/test-services.sh --answers postgres  exit 0 where a server for tests answers (or redis)
#
# Its own servers listen on free ports of loopback and keep their files in a throw-away folder.
set -euo pipefail

say() { echo "$*" >&2; }

# Tests make databases: a server that asks for a password is none for them. These are the tests' own addresses.
answers() {
    python3 - "$1" <<'PY'
import os, socket, struct, sys

def connect(address):
    family = socket.AF_UNIX if isinstance(address, str) else socket.AF_INET
    connection = socket.socket(family)
    connection.settimeout(2)
    connection.connect(address)
    return connection

def postgres(address, user):
    with connect(address) as connection:
        words = b"user\0" + user.encode() + b"\0database\0postgres\0\0"
        connection.sendall(struct.pack("!II", 8 + len(words), 196608) + words)
        answer = connection.recv(9)
        # An "authentication is fine", not a question or an error.
        return answer[:1] == b"R" and answer[5:9] == b"\0\0\0\0"

def redis(address):
    with connect(address) as connection:
        connection.sendall(b"PING\r\n")
        return connection.recv(5) == b"+PONG"

tries = {
    "postgres": [
        lambda: postgres(("127.0.0.1", 5432), "postgres"),
        lambda: postgres(("127.0.0.1", 5432), "root"),
        lambda: postgres("/var/run/postgresql/.s.PGSQL.5432", "root"),
    ],
    "redis": [lambda: redis(("127.0.0.1", 6379))],
}
for one in tries[sys.argv[1]]:
    try:
        if one():
            sys.exit(0)
    except OSError:
        pass
sys.exit(1)
PY
}

# A variable that is set is the user's word; nobody looks behind it.
given_or_answers() {
    case "$1" in
    postgres) [ -n "${FOVEA_TEST_POSTGRES:-}" ] || answers postgres ;;
    redis) [ -n "${FOVEA_TEST_REDIS:-}" ] || answers redis ;;
    *) say "test-services: '$1' is neither postgres nor redis"; exit 2 ;;
    esac
}

# PostgreSQL refuses to run as root.
as_postgres() {
    if [ "$(id -u)" = 0 ]; then runuser -u postgres -- "$@"; else "$@"; fi
}

postgres_bin() {
    local found
    found="$(find /usr/lib/postgresql -path '*/bin/initdb' 2>/dev/null | sort -V | tail -1)"
    [ -n "$found" ] || found="$(command -v initdb || true)"
    [ -z "$found" ] || dirname "$(readlink -f "$found")"
}

free_port() { python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'; }

folder=""
own_folder() {
    [ -z "$folder" ] || return 0
    # Not in TMPDIR: that may be closed to the user postgres.
    folder="$(mktemp -d /tmp/fovea-test-services.XXXXXX)"
    chmod 755 "$folder"
    # Should something below fail, nobody would know what to stop.
    trap '[ $? = 0 ] || FOVEA_TEST_SERVICES="$folder" stop' EXIT
    echo "export FOVEA_TEST_SERVICES=$folder"
}

postgres_own() {
    local bin data port
    bin="$(postgres_bin)"
    [ -n "$bin" ] || { say "skipped: tests on PostgreSQL, none answers and none is installed (apt-get install postgresql)"; return; }
    if [ "$(id -u)" = 0 ] && ! id postgres >/dev/null 2>&1; then
        say "skipped: tests on PostgreSQL, root can't start one without a user postgres"
        return
    fi
    own_folder
    data="$folder/postgres"
    mkdir "$data"
    [ "$(id -u)" != 0 ] || chown postgres "$data"
    port="$(free_port)"
    # From the root folder: the user postgres may not enter this one. What these tests write, no crash has to survive.
    (
        cd /
        as_postgres "$bin/initdb" -D "$data/data" -U postgres --auth=trust --encoding=UTF8 --locale=C --no-sync &&
            as_postgres "$bin/pg_ctl" -D "$data/data" -w -t 60 -l "$data/log" start -o \
                "-p $port -c listen_addresses=127.0.0.1 -c unix_socket_directories='' -c fsync=off -c max_connections=400"
    ) >"$folder/postgres.log" 2>&1 </dev/null || {
        cat "$folder/postgres.log" "$data/log" >&2 2>/dev/null || true
        say "skipped: tests on PostgreSQL, it didn't start; what it said is above"
        return
    }
    say "started PostgreSQL on 127.0.0.1:$port"
    echo "export FOVEA_TEST_POSTGRES=postgres://postgres@127.0.0.1:$port/postgres"
}

redis_own() {
    local server port
    server="$(command -v redis-server || true)"
    [ -n "$server" ] || { say "skipped: tests on Redis, none answers and none is installed (apt-get install redis-server)"; return; }
    own_folder
    port="$(free_port)"
    "$server" --daemonize yes --bind 127.0.0.1 --port "$port" --save "" --appendonly no --dir "$folder" \
        --pidfile "$folder/redis.pid" --logfile "$folder/redis.log" >/dev/null
    say "started Redis on 127.0.0.1:$port"
    echo "export FOVEA_TEST_REDIS=redis://127.0.0.1:$port"
}

stop() {
    local own="${FOVEA_TEST_SERVICES:-}" redis
    case "$own" in
    "") return ;;
    /tmp/fovea-test-services.*) ;;
    *) say "test-services: FOVEA_TEST_SERVICES=$own is no folder of this script"; exit 2 ;;
    esac
    [ -d "$own" ] || return 0
    if [ -d "$own/postgres/data" ]; then
        (cd / && as_postgres "$(postgres_bin)/pg_ctl" -D "$own/postgres/data" -w -m immediate stop) >/dev/null 2>&1 || true
    fi
    if [ -f "$own/redis.pid" ]; then
        redis="$(cat "$own/redis.pid")"
        kill "$redis" 2>/dev/null || true
        # It still writes into its folder while it ends.
        for _ in $(seq 50); do
            kill -0 "$redis" 2>/dev/null || break
            sleep 0.1
        done
    fi
    rm -rf "$own"
}

case "${1:-}" in
"")
    given_or_answers postgres || postgres_own
    given_or_answers redis || redis_own
    ;;
--answers) given_or_answers "${2:-}" ;;
--stop) stop ;;
*) sed -n '2,8p' "$0" >&2; exit 2 ;;
esac
