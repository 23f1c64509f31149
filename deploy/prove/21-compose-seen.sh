#!/usr/bin/env bash
# proves: Prometheus scrapes every service and Grafana has the dashboards (after compose)
# needs: docker compose
# minutes: 10
set -euo pipefail
docker compose -f deploy/compose.yaml up --wait
for _ in $(seq 60); do
    up=$(curl -sf 'http://127.0.0.1:9090/api/v1/query?query=sum(up)' | sed 's/.*,"\([0-9]*\)"\]}.*/\1/')
    [ "$up" = 6 ] && break
    sleep 2
done
[ "$up" = 6 ]
boards=$(curl -sf -u "admin:$(cat deploy/secrets/grafana-password)" 'http://127.0.0.1:3000/api/search?type=dash-db' | grep -o '"uid"' | wc -l)
[ "$boards" -ge "$(find deploy/observability/dashboards -name '*.json' | wc -l)" ]
echo "6 targets are up, $boards dashboards"
