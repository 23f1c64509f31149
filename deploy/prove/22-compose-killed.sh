#!/usr/bin/env bash
# proves: each process is killed under load: answers go on, nothing is lost (after compose)
# needs: docker compose
# minutes: 20
set -euo pipefail
docker compose -f deploy/compose.yaml up --wait
log=$(mktemp)
"$PYTHON" -m tests.load.open_loop --address 127.0.0.1:7300 --rate 5 --seconds 300 >"$log" 2>&1 &
load=$!
trap 'kill $load 2>/dev/null || true; rm -f "$log"' EXIT
for victim in reranker index profiler ingestion qdrant postgres kafka; do
    docker compose -f deploy/compose.yaml kill -s KILL "$victim"
    printf '{"publication": {"paper_id": "killed-%s", "revision": 1, "title": "On %s"}}\n' "$victim" "$victim" >>"$log.events"
    docker compose -f deploy/compose.yaml up --wait "$victim"
done
wait $load
docker compose -f deploy/compose.yaml up --wait
"$PYTHON" -m citewell.cli publish --address 127.0.0.1:7304 --timeout 120 <"$log.events"
docker compose -f deploy/compose.yaml run --rm migrate doctor profiles --address profiler:7300
cat "$log"
