#!/usr/bin/env bash
# proves: components/gateway on a real controller (Envoy Gateway): the page over HTTPS and Recommend over gRPC from outside
# needs: docker kind kubectl helm
# minutes: 60
set -euo pipefail
. deploy/prove/kind.inc
cluster
helm upgrade --install envoy-gateway oci://docker.io/envoyproxy/gateway-helm --version v1.5.0 -n envoy-gateway-system --create-namespace --wait
kubectl label namespace envoy-gateway-system citewell-gateway=true --overwrite
kubectl apply -f - <<'YAML'
apiVersion: gateway.networking.k8s.io/v1
kind: GatewayClass
metadata: {name: example}
spec: {controllerName: gateway.envoyproxy.io/gatewayclass-controller}
YAML
secrets=$(mktemp -d)
trap 'rm -rf "$secrets"; kill $forward 2>/dev/null || true' EXIT
openssl req -x509 -newkey rsa:2048 -nodes -days 1 -subj /CN=citewell.example -addext 'subjectAltName=DNS:*.citewell.example' \
    -keyout "$secrets/tls.key" -out "$secrets/tls.crt" 2>/dev/null
kubectl create namespace prove-gateway --dry-run=client -o yaml | kubectl apply -f -
kubectl -n prove-gateway create secret tls citewell-public --cert "$secrets/tls.crt" --key "$secrets/tls.key" --dry-run=client -o yaml | kubectl apply -f -
prove_overlay gateway embedded-index kafka-single postgres-single edge gateway
for each in recommender edge; do kubectl -n prove-gateway rollout status deployment/$each --timeout=900s; done
kubectl -n prove-gateway wait gateway/citewell --for=condition=Accepted --timeout=300s
service=$(kubectl -n envoy-gateway-system get service -l gateway.envoyproxy.io/owning-gateway-name=citewell -o name)
kubectl -n envoy-gateway-system port-forward "$service" 18443:443 >/dev/null &
forward=$!
for _ in $(seq 60); do
    curl -sf --cacert "$secrets/tls.crt" --connect-to ::127.0.0.1:18443 https://www.citewell.example/ >/dev/null && break
    sleep 2
done
curl -sf --cacert "$secrets/tls.crt" --connect-to ::127.0.0.1:18443 https://www.citewell.example/ | grep -qi citewell
"$PYTHON" - "$secrets/tls.crt" <<'PY'
import sys
from pathlib import Path
import grpc
from citewell.recommender.v1 import recommender_pb2 as messages
from citewell.recommender.v1.recommender_pb2_grpc import RecommenderServiceStub
credentials = grpc.ssl_channel_credentials(Path(sys.argv[1]).read_bytes())
name = [("grpc.ssl_target_name_override", "grpc.citewell.example"), ("grpc.default_authority", "grpc.citewell.example")]
with grpc.secure_channel("127.0.0.1:18443", credentials, name) as channel:
    stub = RecommenderServiceStub(channel)
    query = messages.Query(context="For parsing we build on TARGETCIT.")
    stub.Recommend(messages.RecommendRequest(query=query), timeout=60)
    try:
        channel.unary_unary("/citewell.index.v1.IndexService/Info")(b"", timeout=20)
    except grpc.RpcError as error:
        assert error.code() in (grpc.StatusCode.UNIMPLEMENTED, grpc.StatusCode.NOT_FOUND), error
    else:
        sys.exit("the index can be reached from outside")
PY
echo "the page and Recommend answer through the gateway, the index does not"
