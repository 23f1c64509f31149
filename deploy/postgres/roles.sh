#!/bin/sh
# Runs once, in a new PostgreSQL: makes the profilers' role. `citewell migrate --grant-to citewell` lets it use the rows.
set -eu
psql -v ON_ERROR_STOP=1 -v password="$(cat "$CITEWELL_PASSWORD_FILE")" --username "$POSTGRES_USER" --dbname "$POSTGRES_DB" <<'SQL'
CREATE ROLE citewell LOGIN PASSWORD :'password';
SQL
