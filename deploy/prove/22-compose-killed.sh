#!/usr/bin/env bash
# proves: each process is killed under load: answers go on, nothing is lost (after compose)
# needs: docker compose
# minutes: 40
set -euo pipefail
docker compose -f deploy/compose.yaml up --wait
log=$(mktemp)
"$PYTHON" -m tests.load.open_loop --address 127.0.0.1:7300 --rate 5 --seconds 600 >"$log" 2>&1 &
load=$!
trap 'kill $load 2>/dev/null || true; rm -f "$log"' EXIT
publish() { # a publisher repeats what is not acknowledged; the command ends when the paper is searchable
    printf '{"publication": {"paper_id": "killed-%s", "revision": 1, "title": "On %s"}}\n' "$1" "$1" |
        "$PYTHON" -m citewell.cli publish --address 127.0.0.1:7304 --timeout 120
}
for victim in reranker index profiler ingestion qdrant postgres kafka; do
    docker compose -f deploy/compose.yaml kill -s KILL "$victim"
    (for _ in $(seq 5); do publish "$victim" && exit 0; sleep 5; done; exit 1) &
    publisher=$!
    docker compose -f deploy/compose.yaml up --wait "$victim"
    wait $publisher
done
wait $load
docker compose -f deploy/compose.yaml run --rm migrate doctor profiles --address profiler:7300
if grep -E '^ +ended: .*(INTERNAL|UNKNOWN|UNAVAILABLE)' "$log"; then exit 1; fi
grep -E '^ +ended: ' "$log"
