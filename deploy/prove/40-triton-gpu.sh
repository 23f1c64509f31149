#!/usr/bin/env bash
# proves: DAVINCI on Triton on the GPU scores as it does in process, and how fast
# needs: docker docker-gpu gpu
# minutes: 60
set -euo pipefail
name=citewell-prove-triton
trap 'docker rm -f $name >/dev/null 2>&1' EXIT
docker rm -f $name >/dev/null 2>&1 || true
docker build -f deploy/Dockerfile --target triton -t citewell-triton:0.1.0 .
docker run -d --gpus all --name $name --shm-size 1g -p 127.0.0.1::8001 citewell-triton:0.1.0
address=127.0.0.1:$(docker port $name 8001/tcp | head -1 | cut -d: -f2)
"$PYTHON" deploy/prove/triton_parity.py "$address"
