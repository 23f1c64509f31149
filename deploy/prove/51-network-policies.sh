#!/usr/bin/env bash
# proves: a pod without the label reaches no service, one with it only its own (after kind)
# needs: docker kind kubectl
# minutes: 15
set -euo pipefail
. deploy/prove/kind.inc
cluster
ask() { echo "python -c \"import socket; socket.create_connection(('$1', 7300), 5)\""; }
tool allowed citewell-may-recommend "$(ask recommender)"
refused() {
    if tool "$@"; then
        echo "a pod with the label $2 got through: $3"
        exit 1
    fi
}
refused stranger nobody "$(ask recommender)"
refused caller citewell-may-recommend "$(ask index)"
refused writer citewell-may-publish "$(ask profiler)"
echo "the allowed call went through, three others did not"
