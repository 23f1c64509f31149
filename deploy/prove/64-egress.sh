#!/usr/bin/env bash
# proves: with network-egress a pod of ours reaches its services and stores, and nothing else (after kind)
# needs: docker kind kubectl
# minutes: 45
set -euo pipefail
. deploy/prove/kind.inc
cluster
prove_overlay egress embedded-index kafka-single postgres-single edge network-egress
for each in deployment/recommender deployment/profiler deployment/ingestion statefulset/index; do
    kubectl -n prove-egress rollout status "$each" --timeout=900s
done
reaches() { # deployment, host, port
    kubectl -n prove-egress exec "deployment/$1" -- python -c "import socket; socket.create_connection(('$2', $3), 5)"
}
reaches recommender index 7300
reaches profiler postgres 5432
reaches ingestion broker 9092
for refused in "recommender kubernetes.default 443" "recommender postgres 5432" "ingestion index 7300"; do
    # shellcheck disable=SC2086
    if reaches $refused 2>/dev/null; then
        echo "reached what it must not: $refused"
        exit 1
    fi
done
echo "three allowed connections were made, three others were not"
