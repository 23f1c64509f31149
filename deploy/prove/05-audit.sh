#!/usr/bin/env bash
# proves: no locked package has a known vulnerability
# needs: advisories
# minutes: 10
set -euo pipefail
"$PYTHON" deploy/audit.py .venv-audit/bin/pip-audit
