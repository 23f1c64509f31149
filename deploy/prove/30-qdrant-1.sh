#!/usr/bin/env bash
# proves: the tests marked qdrant_server pass on one real Qdrant server
# needs: docker
# minutes: 20
set -euo pipefail
name=citewell-prove-qdrant
image=$(sed -n 's/^    image: \(qdrant\/qdrant:.*\)/\1/p' deploy/compose.yaml)
trap 'docker rm -f $name >/dev/null 2>&1' EXIT
docker rm -f $name >/dev/null 2>&1 || true
docker run -d --name $name -p 127.0.0.1:6333:6333 -p 127.0.0.1:6334:6334 \
    -v "$PWD/deploy/qdrant/production.yaml:/qdrant/config/production.yaml:ro" "$image" ./entrypoint.sh --uri http://localhost:6335
for _ in $(seq 60); do curl -sf "http://127.0.0.1:6333/readyz" >/dev/null && break; sleep 1; done
CITEWELL_TEST_QDRANT_URL=http://127.0.0.1:6333 "$PYTHON" -m pytest -q -m qdrant_server
