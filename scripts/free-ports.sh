#!/usr/bin/env bash
# Prints variables that give a fleet of its own free ports on loopback:  eval "$(scripts/free-ports.sh)"
set -euo pipefail
python3 - <<'PY'
import socket

services = ["gateway", "accounts", "datasets", "projects", "billing", "scheduler", "inference", "worker"]
sockets = []

def free():
    # All are held until the end, so that none is given twice.
    held = socket.socket()
    held.bind(("127.0.0.1", 0))
    sockets.append(held)
    return held.getsockname()[1]

for kind in ["LISTEN", "METRICS"]:
    for service in services:
        port = free()
        print(f"export FOVEA_FLEET__{kind}__{service.upper()}=127.0.0.1:{port}")
        if (kind, service) == ("LISTEN", "gateway"):
            print(f"export FOVEA_DEMO_URL=http://127.0.0.1:{port}")
print(f"export FOVEA_FLEET__NATS_URL=nats://127.0.0.1:{free()}")
PY
