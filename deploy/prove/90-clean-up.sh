#!/usr/bin/env bash
# proves: what the proofs started is stopped
# needs: docker
# minutes: 10
set -euo pipefail
if docker compose version >/dev/null 2>&1; then docker compose -f deploy/compose.yaml down -v; fi
if command -v kind >/dev/null; then kind delete cluster --name citewell-prove; fi
echo "stopped"
