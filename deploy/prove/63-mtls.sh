#!/usr/bin/env bash
# proves: cert-manager's certificates: services speak TLS to each other, and a renewal restarts nobody
# needs: docker kind kubectl helm
# minutes: 45
set -euo pipefail
. deploy/prove/kind.inc
cluster
helm upgrade --install cert-manager cert-manager --repo https://charts.jetstack.io -n cert-manager --create-namespace --set crds.enabled=true --wait
prove_overlay mtls embedded-index kafka-single postgres-single edge mtls
for each in deployment/recommender deployment/profiler deployment/reranker deployment/ingestion statefulset/index; do
    kubectl -n prove-mtls rollout status $each --timeout=900s
done
kubectl -n prove-mtls create job --from=cronjob/doctor doctor-now
kubectl -n prove-mtls wait --for=condition=complete job/doctor-now --timeout=300s
for each in $(kubectl -n prove-mtls get certificate -o name | grep -v authority); do kubectl -n prove-mtls delete secret "$(basename "$each")"; done
kubectl -n prove-mtls wait certificate --all --for=condition=Ready --timeout=300s
sleep 90  # the kubelet brings the new files
kubectl -n prove-mtls create job --from=cronjob/doctor doctor-again
kubectl -n prove-mtls wait --for=condition=complete job/doctor-again --timeout=300s
[ "$(kubectl -n prove-mtls get pods -l app=profiler -o jsonpath='{.items[0].status.containerStatuses[0].restartCount}')" = 0 ]
echo "the doctor passed before and after all certificates were replaced, without a restart"
