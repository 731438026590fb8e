"""The system to scrape: all servers in one process (`microblog up`), and a separate gateway,
because only calls over the network have peer metrics. This process serves as that gateway's user
service, and answers OK or UNAVAILABLE."""

import hashlib
import json
import os
import signal
import socket
import sqlite3
import subprocess
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import launcher
import processes

# Read when grpc is loaded: see the check of Kubernetes.
os.environ["GRPC_VERBOSITY"] = "NONE"
os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "0"

import grpc  # noqa: E402

# Port offsets of `microblog up`.
USER, RELATION, POST, TIMELINE, NOTICE, REDIS = 1, 2, 3, 4, 5, 9
CHECK_AVAILABILITY = "/microblog.gateway.v1.GatewayService/CheckAvailability"
USER_SERVICE = "/microblog.user.v1.UserService/"
GET_TIMELINE = "/microblog.timeline.v1.TimelineService/GetTimeline"
# A service caller, and the file that the gateway has of it.
SECRET = "secret"
CALLER = (("authorization", f"Caller check:{SECRET}"),)
CALLERS = {"callers": [{
    "name": "check",
    "secrets_sha256": [hashlib.sha256(SECRET.encode()).hexdigest()],
    "methods": ["CheckAvailability", "ChangeService.Watch"],
}]}
# A name, as the first field of a request.
NAME = b"\x0a\x03zoe"
# An invalid request: without a user.
NOTHING = b""
# A tour makes about seventy calls in sequence, and retries those that are UNAVAILABLE.
TOUR_S = 5 * processes.TIMEOUT_S


@dataclass
class System:
    """The running system, with calls and faults."""

    programs: Path
    directory: Path
    port_base: int
    gateway_port: int
    targets: list
    is_user_available: bool = field(default=True)

    def tour(self):
        """Makes calls of all kinds through the whole system. Returns whether all succeeded."""
        result = subprocess.run(self._tour(), capture_output=True, text=True, timeout=TOUR_S)
        return result.returncode == 0

    @contextmanager
    def tours(self):
        """Makes tours in sequence for the duration of a block. During a fault, a tour retries
        its calls for long, so the last one is killed."""
        stopped, in_flight = threading.Event(), []

        def make():
            while not stopped.is_set():
                in_flight[:] = [subprocess.Popen(
                    self._tour(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
                )]
                in_flight[0].wait()

        maker = threading.Thread(target=make)
        maker.start()
        try:
            yield
        finally:
            stopped.set()
            while maker.is_alive():
                for one in in_flight:
                    one.kill()
                maker.join(0.1)

    def _tour(self):
        return [self.programs / "microblog", "demo", "--gateway-url",
                f"http://127.0.0.1:{self.port_base}"]

    def call_gateway(self, times):
        """Calls the separate gateway, as a service caller. Returns the number of OK responses."""
        return _call(self.gateway_port, CHECK_AVAILABILITY, NAME, times, CALLER)

    def call_timeline_invalidly(self):
        """Calls the timeline service with an invalid request. Returns the number of OK
        responses."""
        return _call(self.port_base + TIMELINE, GET_TIMELINE, NOTHING, times=1)

    @contextmanager
    def frozen_redis(self):
        """Stops Redis (SIGSTOP) for the duration of a block."""
        redis = int((self.directory / "data/redis/redis.pid").read_text())
        os.kill(redis, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(redis, signal.SIGCONT)

    @contextmanager
    def full_redis(self):
        """Makes Redis reject all writes for the duration of a block."""
        self._send_to_redis("CONFIG SET maxmemory 1")
        try:
            yield
        finally:
            self._send_to_redis("CONFIG SET maxmemory 0")

    @contextmanager
    def broken_database(self):
        """Renames the table of posts for the duration of a block."""
        with closing(sqlite3.connect(self.directory / "data/post.sqlite")) as database:
            database.execute("ALTER TABLE posts RENAME TO hidden")
            try:
                yield
            finally:
                database.execute("ALTER TABLE hidden RENAME TO posts")

    def _send_to_redis(self, command):
        passwords = (self.directory / "data/redis/passwords").read_text().splitlines()
        password = dict(line.split() for line in passwords)["admin"]
        address = ("127.0.0.1", self.port_base + REDIS)
        with socket.create_connection(address, timeout=processes.TIMEOUT_S) as connection:
            connection.sendall(f"AUTH admin {password}\r\n".encode())
            connection.recv(100)
            connection.sendall(f"{command}\r\n".encode())
            if not connection.recv(100).startswith(b"+OK"):
                raise SystemExit(f"Redis rejects {command}")


def _call(port, method, request, times, metadata=()):
    """Makes the same call many times concurrently. Returns the number of OK responses."""
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        call = channel.unary_unary(method)
        calls = [
            call.future(request, timeout=processes.TIMEOUT_S, metadata=metadata)
            for _ in range(times)
        ]
        return sum(one.exception() is None for one in calls)


@contextmanager
def running(programs, directory):
    """Runs a system for the duration of a block, once it is ready."""
    base, metrics = processes.free_ports(launcher.PORTS), [processes.free_port(), processes.free_port()]
    system = System(programs, directory, base, processes.free_port(),
                    [f"127.0.0.1:{port}" for port in metrics])
    up = [programs / "microblog", "up", "--data-dir", "data", "--port-base", str(base),
          "--metrics-listen", system.targets[0]]
    environment = {"PATH": os.environ["PATH"]}
    (directory / "callers.json").write_text(json.dumps(CALLERS))
    up_environment = environment | {"MICROBLOG_CALLERS_FILE": "callers.json"}
    # Continues after faults.
    changes = [programs / "microblog", "changes", "--gateway-url", f"http://127.0.0.1:{base}",
               "--caller", f"check:{SECRET}"]
    with processes.running(up, directory, env=up_environment) as process, _user(system) as user:
        is_ready = lambda: "\nready" in process.log.read_text()
        processes.until_ready(process, "microblog up", is_ready, every_s=0.1)
        gateway = [
            programs / "microblog-gateway", "--listen", f"127.0.0.1:{system.gateway_port}",
            "--metrics-listen", system.targets[1], "--user-url",
            ",".join(f"http://{address}" for address in user),
            # All calls come from one address, and must not be rate limited.
            "--availability-checks-per-minute", "0", "--callers-file", "callers.json",
        ]
        for name, place in (
            ("relation", RELATION), ("post", POST), ("timeline", TIMELINE), ("notice", NOTICE),
        ):
            gateway += [f"--{name}-url", f"http://127.0.0.1:{base + place}"]
        with processes.running(gateway, directory, env=environment) as process, \
                processes.running(changes, directory, env=environment):
            processes.until_ready(process, "the gateway", lambda: system.call_gateway(1) == 1)
            yield system


@contextmanager
def _user(system):
    """Serves as the user service at two addresses, so that UNAVAILABLE responses are retried.
    Yields the addresses."""

    class User(grpc.GenericRpcHandler):
        def service(self, details):
            # Other methods are UNIMPLEMENTED, such as batches of calls.
            if not details.method.startswith(USER_SERVICE):
                return None

            def answer(_request, context):
                if not system.is_user_available:
                    context.abort(grpc.StatusCode.UNAVAILABLE, "injected fault")
                return b""
            return grpc.unary_unary_rpc_method_handler(answer)

    server = grpc.server(ThreadPoolExecutor(4), handlers=[User()])
    addresses = [f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}" for _ in range(2)]
    server.start()
    try:
        yield addresses
    finally:
        server.stop(None).wait()
