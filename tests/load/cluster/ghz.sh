#!/usr/bin/env bash
# Offers Recommend at a constant rate with ghz (https://ghz.sh), to a recommender that runs already:
#
#   ADDRESS=recommender:7300 RATE=50 DURATION=10m RERANK=false tests/load/cluster/ghz.sh
#
# --async sends requests whether or not earlier ones were answered. Queries are the lines of QUERIES, or one example.
set -euo pipefail
cd "$(dirname "$0")/../../.."
command -v ghz >/dev/null || { echo "ghz is missing: go install github.com/bojand/ghz/cmd/ghz@latest"; exit 1; }
ADDRESS=${ADDRESS:-127.0.0.1:7300} RATE=${RATE:-10} DURATION=${DURATION:-30s} RERANK=${RERANK:-false}
DEADLINE=${DEADLINE:-5s} CONNECTIONS=${CONNECTIONS:-4} OUT=${OUT:-ghz.json}
data=$(mktemp)
trap 'rm -f "$data"' EXIT
if [ -n "${QUERIES:-}" ]; then
  python3 - "$QUERIES" "$RERANK" >"$data" <<'PY'
import json, sys
with open(sys.argv[1], encoding="utf-8") as lines:
    contexts = [line.strip() for line in lines if line.strip()]
print(json.dumps([{"query": {"context": each}, "options": {"rerank": sys.argv[2] == "true"}} for each in contexts]))
PY
else
  echo "[{\"query\": {\"context\": \"Sparse retrieval was studied by TARGETCIT before.\"}, \"options\": {\"rerank\": $RERANK}}]" >"$data"
fi
secure=()
[ "${TLS:-false}" = true ] || secure=(--insecure)
[ -z "${TOKEN:-}" ] || secure+=(--metadata "{\"authorization\": \"Bearer $TOKEN\"}")
ghz "${secure[@]}" --proto protos/citewell/recommender/v1/recommender.proto --import-paths protos \
  --call citewell.recommender.v1.RecommenderService/Recommend --data-file "$data" --async --rps "$RATE" \
  --duration "$DURATION" --timeout "$DEADLINE" --connections "$CONNECTIONS" --concurrency 512 --format pretty --output "$OUT" \
  "$ADDRESS"
python3 - "$OUT" <<'PY'
import json, sys
told = json.load(open(sys.argv[1], encoding="utf-8"))
print(f"{told['count']} requests, {told['rps']:.1f}/s, statuses {told['statusCodeDistribution']}")
print("  ".join(f"p{each['percentage']} {each['latency'] / 1e6:.1f} ms" for each in told["latencyDistribution"] or []))
PY
