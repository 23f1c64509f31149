#!/usr/bin/env bash
# Makes the passwords of deploy/compose.yaml in deploy/secrets, which git ignores. Existing ones stay.
set -euo pipefail
cd "$(dirname "$0")"
umask 077
mkdir -p secrets
random() { od -An -N24 -tx1 /dev/urandom | tr -d ' \n'; }
# The folder is closed to others; the files are open, since the services' user inside the containers reads them.
keep() { [ -e "secrets/$1" ] || { printf '%s' "$2" >"secrets/$1"; chmod 644 "secrets/$1"; }; }
keep owner-password "$(random)"
keep citewell-password "$(random)"
keep grafana-password "$(random)"
keep qdrant-key "$(random)"
keep owner-url "postgresql://owner:$(cat secrets/owner-password)@postgres/ledger"
keep citewell-url "postgresql://citewell:$(cat secrets/citewell-password)@postgres/ledger"
