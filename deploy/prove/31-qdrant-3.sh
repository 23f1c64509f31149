#!/usr/bin/env bash
# proves: the same tests on three Qdrant nodes, and searches go on when one is lost
# needs: docker
# minutes: 30
set -euo pipefail
network=citewell-prove-qdrant
image=$(sed -n 's/^    image: \(qdrant\/qdrant:.*\)/\1/p' deploy/compose.yaml)
clean() { docker rm -f $network-{0,1,2} >/dev/null 2>&1 || true; docker network rm $network >/dev/null 2>&1 || true; }
trap clean EXIT
clean
docker network create $network >/dev/null
for node in 0 1 2; do
    how=(--uri "http://$network-$node:6335")
    [ $node = 0 ] || how+=(--bootstrap "http://$network-0:6335")
    ports=()
    [ $node = 0 ] && ports=(-p 127.0.0.1:6333:6333 -p 127.0.0.1:6334:6334)
    docker run -d --name $network-$node --network $network "${ports[@]}" \
        -v "$PWD/deploy/qdrant/production.yaml:/qdrant/config/production.yaml:ro" "$image" ./entrypoint.sh "${how[@]}"
    sleep 5
done
for _ in $(seq 60); do
    peers=$(curl -sf http://127.0.0.1:6333/cluster | grep -o '"uri"' | wc -l) || peers=0
    [ "$peers" = 3 ] && break
    sleep 1
done
[ "$peers" = 3 ]
CITEWELL_TEST_QDRANT_URL=http://127.0.0.1:6333 "$PYTHON" -m pytest -q -m qdrant_server
# Two copies of each shard: a node may go, and everything is still found.
curl -sf -X PUT http://127.0.0.1:6333/collections/lost -H 'content-type: application/json' \
    -d '{"vectors": {"size": 4, "distance": "Cosine"}, "shard_number": 3, "replication_factor": 2, "write_consistency_factor": 2}' >/dev/null
"$PYTHON" - <<'PY'
import json, urllib.request
points = [{"id": number, "vector": [number % 7 + 1, number % 5, number % 3, 1]} for number in range(1, 301)]
request = urllib.request.Request("http://127.0.0.1:6333/collections/lost/points?wait=true", method="PUT",
    data=json.dumps({"points": points}).encode(), headers={"content-type": "application/json"})
urllib.request.urlopen(request, timeout=30)
PY
docker kill $network-2 >/dev/null
found=$(curl -sf -X POST http://127.0.0.1:6333/collections/lost/points/scroll -H 'content-type: application/json' -d '{"limit": 1000}' | grep -o '"id"' | wc -l)
[ "$found" = 300 ]
echo "the tests pass on three nodes; after one was killed 300 of 300 points are found"
