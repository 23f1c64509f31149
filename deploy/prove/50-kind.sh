#!/usr/bin/env bash
# proves: overlays/dev runs in a kind cluster of three nodes, and answers
# needs: docker kind kubectl
# minutes: 60
set -euo pipefail
. deploy/prove/kind.inc
cluster
load_images
kubectl apply -k k8s/overlays/dev
kubectl -n citewell-dev wait --for=condition=complete job/migrate job/topics --timeout=600s
for each in deployment/recommender deployment/profiler deployment/profiler-query deployment/reranker deployment/ingestion deployment/edge statefulset/index; do
    kubectl -n citewell-dev rollout status "$each" --timeout=600s
done
tool publisher citewell-may-publish "printf '{\"publication\": {\"paper_id\": \"p\", \"revision\": 1, \"title\": \"On parsing\"}}\n' | python -m citewell.cli publish --address ingestion:7300"
tool caller citewell-may-recommend "python -m citewell.cli recommend 'For parsing we build on TARGETCIT.' --address recommender:7300"
kubectl -n citewell-dev create job --from=cronjob/doctor doctor-now --dry-run=client -o yaml | kubectl apply -f -
kubectl -n citewell-dev wait --for=condition=complete job/doctor-now --timeout=300s
echo "published, recommended, checked by the doctor"
