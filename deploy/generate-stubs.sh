#!/usr/bin/env bash
# Writes the Python stubs of every contract below the folder given (default: the source root).
set -euo pipefail
cd "$(dirname "$0")/.."
out=${1:-services}
python=${PYTHON:-.venv/bin/python}
export PATH="$(cd "$(dirname "$python")" && pwd):$PATH" # protoc finds its mypy plugins on the PATH
mapfile -t protos < <(cd protos && find citewell -name '*.proto' | sort)
"$python" -m grpc_tools.protoc -I protos \
    --python_out="$out" --grpc_python_out="$out" --mypy_out="quiet:$out" --mypy_grpc_out="quiet:$out" "${protos[@]}"
# Files without a service need no gRPC module.
for stub in $(find "$out" -path '*/v1/*_pb2_grpc.py'); do
    grep -q 'class .*Stub' "$stub" || rm "$stub" "${stub}i"
done
