#!/usr/bin/env bash
# Finds a PostgreSQL and a Redis for tests, or starts its own, and prints the variables that say where they are:
#   eval "$(scripts/test-services.sh)"
# Its own servers listen on loopback, keep their files in a throw-away folder and end with the machine.
set -euo pipefail

say() { echo "$*" >&2; }
run="${XDG_CACHE_HOME:-$HOME/.cache}/fovea/test-services"
mkdir -p "$run"

free_port() { python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'; }
answers() { python3 - "$1" "$2" <<'PY'
import socket, sys
try:
    socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=2).close()
except OSError:
    sys.exit(1)
PY
}

postgres_own() {
    local bin data port
    bin="$(ls -d /usr/lib/postgresql/*/bin 2>/dev/null | sort -V | tail -1)"
    [ -n "$bin" ] || { say "skipped: tests on PostgreSQL, none answers and none is installed (apt-get install postgresql)"; return; }
    data="$run/postgres"
    if [ -f "$run/postgres.port" ] && answers 127.0.0.1 "$(cat "$run/postgres.port")"; then
        port="$(cat "$run/postgres.port")"
    else
        port="$(free_port)"
        rm -rf "$data"
        local as=()
        # The server refuses to run as root.
        if [ "$(id -u)" = 0 ]; then
            data="$(mktemp -d)/postgres"
            chmod 755 "$(dirname "$data")"
            chown postgres "$(dirname "$data")"
            as=(runuser -u postgres --)
        fi
        "${as[@]}" "$bin/initdb" -D "$data" -U postgres --auth=trust >/dev/null
        "${as[@]}" "$bin/pg_ctl" -D "$data" -w -o "-p $port -k /tmp -c listen_addresses=127.0.0.1" -l "$data.log" start >/dev/null
        echo "$port" >"$run/postgres.port"
    fi
    echo "export FOVEA_TEST_POSTGRES=postgres://postgres@127.0.0.1:$port/postgres"
}

redis_own() {
    local server port
    server="$(command -v redis-server || true)"
    [ -n "$server" ] || { say "skipped: tests on Redis, none answers and none is installed (apt-get install redis-server)"; return; }
    if [ -f "$run/redis.port" ] && answers 127.0.0.1 "$(cat "$run/redis.port")"; then
        port="$(cat "$run/redis.port")"
    else
        port="$(free_port)"
        "$server" --daemonize yes --bind 127.0.0.1 --port "$port" --save "" --appendonly no --dir "$run" >/dev/null
        echo "$port" >"$run/redis.port"
    fi
    echo "export FOVEA_TEST_REDIS=redis://127.0.0.1:$port"
}

[ -n "${FOVEA_TEST_POSTGRES:-}" ] || answers 127.0.0.1 5432 || postgres_own
[ -n "${FOVEA_TEST_REDIS:-}" ] || answers 127.0.0.1 6379 || redis_own
