#!/usr/bin/env bash
# proves: KEDA scales ingestion when events wait
# needs: docker kind kubectl helm
# minutes: 45
set -euo pipefail
. deploy/prove/kind.inc
cluster
helm upgrade --install keda keda --repo https://kedacore.github.io/charts -n keda --create-namespace --wait
helm upgrade --install prometheus kube-prometheus-stack --repo https://prometheus-community.github.io/helm-charts -n monitoring --create-namespace \
    --set prometheus.prometheusSpec.podMonitorSelectorNilUsesHelmValues=false --set grafana.enabled=false --wait
prove_overlay keda embedded-index kafka-single postgres-single monitoring keda
kubectl -n prove-keda rollout status deployment/ingestion --timeout=900s
kubectl -n prove-keda scale deployment/profiler --replicas=0  # nothing is applied, so that events wait
events='import json
for number in range(20000):
    print(json.dumps({"publication": {"paper_id": f"waiting-{number}", "revision": 1, "title": f"On waiting, part {number}"}}))'
# The command ends with 1, because nothing becomes searchable in time.
tool publisher citewell-may-publish "python -c '$events' | timeout 300 python -m citewell.cli publish --address ingestion:7300 --timeout 10 || true" prove-keda >/dev/null
for _ in $(seq 60); do
    replicas=$(kubectl -n prove-keda get deployment ingestion -o jsonpath='{.spec.replicas}')
    [ "$replicas" -gt 2 ] && break
    sleep 10
done
[ "$replicas" -gt 2 ]
echo "$replicas ingestion pods"
