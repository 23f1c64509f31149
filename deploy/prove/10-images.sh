#!/usr/bin/env bash
# proves: every image builds, and every pinned image of others is there
# needs: docker compose
# minutes: 60
set -euo pipefail
deploy/compose-secrets.sh
docker compose -f deploy/compose.yaml build
docker compose -f deploy/compose.yaml pull --ignore-buildable
for service in recommender profiler index reranker ingestion edge; do
    docker run --rm --read-only --tmpfs /tmp --entrypoint python "citewell-$service:0.1.0" \
        -c "import citewell.$service.settings; print('$service')"
done
docker run --rm --read-only --tmpfs /tmp citewell-tools:0.1.0 --version
docker images --format '{{.Repository}} {{.Size}}' | grep '^citewell-' | sort -u | paste -sd ';'
