#!/usr/bin/env bash
# proves: a rolling restart of the stateless services under load fails no call (after kind)
# needs: docker kind kubectl
# minutes: 30
set -euo pipefail
. deploy/prove/kind.inc
cluster
kubectl -n citewell-dev patch hpa recommender profiler-query reranker --type merge -p '{"spec": {"minReplicas": 2}}'
for each in recommender profiler-query reranker; do kubectl -n citewell-dev rollout status deployment/$each --timeout=600s; done
calls='import sys, time
from citewell.client import Citewell, Query
failed = done = 0
end = time.monotonic() + 240
with Citewell("recommender:7300", timeout=20) as citewell:
    while time.monotonic() < end:
        try:
            citewell.recommend(Query("For parsing we build on TARGETCIT.")); done += 1
        except Exception as error:
            failed += 1; print(error)
print(f"{done} answers, {failed} failures"); sys.exit(failed > 0)'
tool caller citewell-may-recommend "python -c '$calls'" &
load=$!
sleep 15
for each in recommender profiler-query reranker; do
    kubectl -n citewell-dev rollout restart deployment/$each
    kubectl -n citewell-dev rollout status deployment/$each --timeout=600s
done
wait $load
