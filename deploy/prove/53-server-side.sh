#!/usr/bin/env bash
# proves: an API server with the operators' CRDs takes overlays/staging and overlays/production (after kind)
# needs: docker kind kubectl
# minutes: 20
set -euo pipefail
. deploy/prove/kind.inc
cluster
[ -e .cache/crds/.complete ] || deploy/crds/fetch.sh .cache/crds
kubectl apply --server-side --force-conflicts -f .cache/crds
kubectl wait --for=condition=established crd --all --timeout=120s
for each in staging:citewell-staging production:citewell; do
    kubectl create namespace "${each#*:}" --dry-run=client -o yaml | kubectl apply -f -
    kubectl apply -k "k8s/overlays/${each%:*}" --dry-run=server >/dev/null
done
echo "both are accepted"
