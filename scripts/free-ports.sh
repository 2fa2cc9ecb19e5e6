#!/usr/bin/env bash
# Prints variables that give a fleet of its own free ports on loopback:  eval "$(scripts/free-ports.sh)"
set -euo pipefail
python3 - <<'PY'
import random
import socket

services = ["gateway", "accounts", "datasets", "projects", "billing", "scheduler", "inference", "worker"]
# Below the ports that the system gives to outgoing connections: nobody takes one of these by chance.
candidates = random.sample(range(10000, 32000), 2000)

def free():
    while True:
        port = candidates.pop()
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        return port

for kind in ["LISTEN", "METRICS"]:
    for service in services:
        port = free()
        print(f"export FOVEA_FLEET__{kind}__{service.upper()}=127.0.0.1:{port}")
        if (kind, service) == ("LISTEN", "gateway"):
            print(f"export FOVEA_DEMO_URL=http://127.0.0.1:{port}")
print(f"export FOVEA_FLEET__NATS_URL=nats://127.0.0.1:{free()}")
PY
