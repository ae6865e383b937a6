#!/bin/sh
# The HTTP API: a table, rows with parameters, a query, answered as JSON. The first argument names another server.
set -eu
url=${1:-http://localhost:6876}
sql() { curl -sS "$url/api/sql" -H 'Content-Type: application/json' -d "$1"; }

sql '{"query": "CREATE TABLE example_visits (page text, seconds int)"}'
sql '{"queries": [{"query": "INSERT INTO example_visits VALUES ($1, $2)", "params": ["/home", 12]},
                  {"query": "INSERT INTO example_visits VALUES ($1, $2)", "params": ["/docs", null]}]}'
sql '{"query": "SELECT page, seconds FROM example_visits ORDER BY page"}'
sql '{"query": "DROP TABLE example_visits"}'
