#!/usr/bin/env bash
# proves: the tests marked gpu pass: FAISS on a GPU
# needs: gpu
# minutes: 30
set -euo pipefail
"$PYTHON" -m pytest -q -m gpu
