#!/usr/bin/env bash
# proves: latency of Recommend at 5, 10 and 20 requests a second (after compose)
# needs: docker compose
# minutes: 10
set -euo pipefail
docker compose -f deploy/compose.yaml up --wait
for rate in 5 10 20; do
    "$PYTHON" -m tests.load.open_loop --address 127.0.0.1:7300 --rate "$rate" --seconds 60
done
