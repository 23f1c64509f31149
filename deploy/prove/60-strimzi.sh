#!/usr/bin/env bash
# proves: Strimzi makes the Kafka of components/kafka-strimzi, and the topics job passes with its user
# needs: docker kind kubectl helm
# minutes: 45
set -euo pipefail
. deploy/prove/kind.inc
cluster
helm upgrade --install strimzi oci://quay.io/strimzi-helm/strimzi-kafka-operator --version 0.47.0 -n strimzi --create-namespace --set watchAnyNamespace=true --wait
prove_overlay strimzi embedded-index kafka-strimzi postgres-single
kubectl -n prove-strimzi wait kafka/log --for=condition=Ready --timeout=1200s
kubectl -n prove-strimzi wait --for=condition=complete job/topics --timeout=900s
kubectl -n prove-strimzi rollout status deployment/ingestion --timeout=600s
echo "the topics are made, ingestion serves over TLS with its password"
