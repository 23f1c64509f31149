#!/usr/bin/env bash
# proves: the whole compose set-up starts, loads 2,000 papers, answers, and its profiles are right
# needs: docker compose
# minutes: 30
set -euo pipefail
deploy/compose-secrets.sh
docker compose -f deploy/compose.yaml up --build --wait
corpus=$(mktemp -d)
trap 'rm -rf "$corpus"' EXIT
"$PYTHON" -m citewell.cli demo-corpus --out "$corpus" --papers 2000
"$PYTHON" -m citewell.cli load "$corpus" --split train --events --address 127.0.0.1:7304 --timeout 900
"$PYTHON" -m citewell.cli recommend "For parsing we build on TARGETCIT." --title "Parsing" --address 127.0.0.1:7300
curl -sf http://127.0.0.1:7310/ >/dev/null
docker compose -f deploy/compose.yaml run --rm migrate doctor profiles --address profiler:7300
