#!/usr/bin/env bash
# proves: the three Qdrant nodes of components/qdrant form a cluster; index pods serve while one node is gone
# needs: docker kind kubectl
# minutes: 45
set -euo pipefail
. deploy/prove/kind.inc
cluster
kubectl create namespace prove-qdrant --dry-run=client -o yaml | kubectl apply -f -
kubectl -n prove-qdrant create secret generic qdrant --from-literal=api-key=prove --dry-run=client -o yaml | kubectl apply -f -
prove_overlay qdrant qdrant kafka-single postgres-single
kubectl -n prove-qdrant rollout status statefulset/qdrant --timeout=900s
kubectl -n prove-qdrant rollout status deployment/index deployment/recommender --timeout=900s
kubectl -n prove-qdrant delete pod qdrant-2 --wait=false
kubectl -n prove-qdrant wait --for=condition=available deployment/index --timeout=120s
kubectl -n prove-qdrant rollout status statefulset/qdrant --timeout=600s
echo "three nodes, and the index was available while one came back"
