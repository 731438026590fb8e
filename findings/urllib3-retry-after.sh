#!/bin/sh
# urllib3 sleeps as long as a server says in `retry-after`, three times, although the caller has configured
# no retries and has set a time-out.
#
# urllib3 2.8.0 (PyPI).
#
# One would guess that without a `Retry` object, or with one that names no status, a response of 429 or 503
# is returned, and that `timeout=5` bounds the call. But by default there are 3 retries, for connections that
# break, and `respect_retry_after_header` makes 413, 429 and 503 one of their causes. The time-out is for the
# socket alone. A server that begins to send `retry-after: 60` makes such a caller wait for 3 minutes before
# it learns of the 429. A POST, and a 500, are returned at once.
#
# Output (with `retry-after: 2`):
#   GET 429: 4 requests, sleeps for 6 s
#   GET 503: 4 requests, sleeps for 6 s
#   GET 500: 1 request, sleeps for 0 s
#   POST 429: 1 request, sleeps for 0 s
#   GET 429 with retries=False: 1 request, sleeps for 0 s
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check --only-binary :all: urllib3==2.8.0
cat >"$folder/try.py" <<'PYTHON'
import http.server
import threading
import time

import urllib3

AFTER_S = 2
requests = []


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        requests.append(time.monotonic())
        self.send_response(int(self.path[1:]))
        self.send_header("retry-after", str(AFTER_S))
        self.send_header("content-length", "0")
        self.end_headers()

    do_POST = do_GET

    def log_message(self, *_):
        pass


def attempt(method, status, title="", **options):
    requests.clear()
    response = urllib3.request(method, f"http://127.0.0.1:{port}/{status}", timeout=5, **options)
    assert response.status == status
    slept_s = AFTER_S * sum(later - one >= AFTER_S for one, later in zip(requests, requests[1:]))
    count = f"{len(requests)} request{'s' if len(requests) > 1 else ''}"
    print(f"{method} {status}{title}: {count}, sleeps for {slept_s} s")


server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
port = server.server_port
threading.Thread(target=server.serve_forever, daemon=True).start()
attempt("GET", 429)
attempt("GET", 503)
attempt("GET", 500)
attempt("POST", 429)
attempt("GET", 429, " with retries=False", retries=False)
server.shutdown()
PYTHON
timeout 120 "$folder/venv/bin/python" "$folder/try.py" | tee "$folder/output"
cat >"$folder/expected" <<'TEXT'
GET 429: 4 requests, sleeps for 6 s
GET 503: 4 requests, sleeps for 6 s
GET 500: 1 request, sleeps for 0 s
POST 429: 1 request, sleeps for 0 s
GET 429 with retries=False: 1 request, sleeps for 0 s
TEXT
cmp "$folder/output" "$folder/expected"
