#!/usr/bin/env bash
# proves: memory, latency and recall of searches in 10,000,000 papers, flat and sq8
# needs: memory
# minutes: 240
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
for form in flat sq8; do
    "$PYTHON" -m tests.load.scale_bench copy "$folder" --papers 10000000 --form $form --words-on-disk
done
