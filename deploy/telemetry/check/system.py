"""A microblog to be scraped: all servers in one process, as people start it; and a gateway of its
own beside it, since only who calls over the network has metrics of peers. Its user service is
played by this process: it answers, or says UNAVAILABLE, as it is told."""

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

import processes

# Read when grpc is loaded: see the check of Kubernetes.
os.environ["GRPC_VERBOSITY"] = "NONE"
os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "0"

import grpc  # noqa: E402

# Of `microblog up`, counted from its first port.
USER, RELATION, POST, TIMELINE, REDIS, PORTS = 1, 2, 3, 4, 9, 10
CHECK_AVAILABILITY = "/microblog.gateway.v1.GatewayService/CheckAvailability"
GET_TIMELINE = "/microblog.timeline.v1.TimelineService/GetTimeline"
# A name, as the first field of a request.
NAME = b"\x0a\x03zoe"
# A request that says nothing: whose timeline, for one.
NOTHING = b""
# A tour makes about a hundred calls one after the other, and repeats those that are UNAVAILABLE.
TOUR_S = 5 * processes.PATIENCE_S


@dataclass
class System:
    """What runs, and what can be done to it."""

    programs: Path
    directory: Path
    port_base: int
    gateway_port: int
    targets: list
    is_user_well: bool = field(default=True)

    def tour(self):
        """Makes calls of all kinds, through the whole system. Whether all were answered well."""
        said = subprocess.run(self._tour(), capture_output=True, text=True, timeout=TOUR_S)
        return said.returncode == 0

    @contextmanager
    def tours(self):
        """Makes tours one after the other, for as long as a block. One that meets trouble repeats its
        calls for long: the last one is cut off."""
        ends, under_way = threading.Event(), []

        def make():
            while not ends.is_set():
                under_way[:] = [subprocess.Popen(
                    self._tour(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
                )]
                under_way[0].wait()

        maker = threading.Thread(target=make)
        maker.start()
        try:
            yield
        finally:
            ends.set()
            while maker.is_alive():
                for one in under_way:
                    one.kill()
                maker.join(0.1)

    def _tour(self):
        return [self.programs / "microblog", "demo", "--gateway-url",
                f"http://127.0.0.1:{self.port_base}"]

    def ask_gateway(self, times):
        """Calls the gateway beside. Returns how often it answered."""
        return _ask(self.gateway_port, CHECK_AVAILABILITY, NAME, times)

    def ask_timeline_wrongly(self):
        """Calls the timeline service without saying what for. Returns how often it answered."""
        return _ask(self.port_base + TIMELINE, GET_TIMELINE, NOTHING, times=1)

    @contextmanager
    def frozen_redis(self):
        """Has Redis answer nobody for as long as a block."""
        redis = int((self.directory / "data/redis/redis.pid").read_text())
        os.kill(redis, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(redis, signal.SIGCONT)

    @contextmanager
    def full_redis(self):
        """Has Redis refuse all writes for as long as a block."""
        self._tell_redis("CONFIG SET maxmemory 1")
        try:
            yield
        finally:
            self._tell_redis("CONFIG SET maxmemory 0")

    @contextmanager
    def broken_archive(self):
        """Hides posts from whoever asks the archive for them, for as long as a block."""
        with closing(sqlite3.connect(self.directory / "data/archive.sqlite")) as archive:
            archive.execute("ALTER TABLE posts RENAME TO hidden")
            try:
                yield
            finally:
                archive.execute("ALTER TABLE hidden RENAME TO posts")

    def _tell_redis(self, command):
        passwords = (self.directory / "data/redis/passwords").read_text().splitlines()
        password = dict(line.split() for line in passwords)["admin"]
        address = ("127.0.0.1", self.port_base + REDIS)
        with socket.create_connection(address, timeout=processes.PATIENCE_S) as connection:
            connection.sendall(f"AUTH admin {password}\r\n".encode())
            connection.recv(100)
            connection.sendall(f"{command}\r\n".encode())
            if not connection.recv(100).startswith(b"+OK"):
                raise SystemExit(f"Redis refuses {command}")


def _ask(port, method, request, times):
    """Makes the same call many times at once. Returns how often it was answered with OK."""
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        call = channel.unary_unary(method)
        asked = [call.future(request, timeout=processes.PATIENCE_S) for _ in range(times)]
        return sum(one.exception() is None for one in asked)


@contextmanager
def running(programs, directory):
    """Runs one for as long as a block, once it is ready."""
    base, metrics = _free_ports(), [processes.free_port(), processes.free_port()]
    system = System(programs, directory, base, processes.free_port(),
                    [f"127.0.0.1:{port}" for port in metrics])
    up = [programs / "microblog", "up", "--data-dir", "data", "--port-base", str(base),
          "--metrics-listen", system.targets[0]]
    environment = {"PATH": os.environ["PATH"]}
    with processes.running(up, directory, env=environment) as process, _user(system) as user:
        is_ready = lambda: "\nready" in process.log.read_text()
        if not processes.eventually(is_ready, every_s=0.1):
            raise SystemExit(f"microblog up is not ready:{processes.end_of(process.log)}")
        gateway = [
            programs / "microblog-gateway", "--listen", f"127.0.0.1:{system.gateway_port}",
            "--metrics-listen", system.targets[1], "--user-url",
            ",".join(f"http://{address}" for address in user),
            # All calls come from one address here, and are to get through.
            "--availability-checks-per-minute", "0",
        ]
        for name, place in (("relation", RELATION), ("post", POST), ("timeline", TIMELINE)):
            gateway += [f"--{name}-url", f"http://127.0.0.1:{base + place}"]
        with processes.running(gateway, directory, env=environment) as process:
            if not processes.eventually(lambda: system.ask_gateway(1) == 1):
                raise SystemExit(f"the gateway does not answer:{processes.end_of(process.log)}")
            yield system


@contextmanager
def _user(system):
    """Plays the user service, at two addresses: what one answers with UNAVAILABLE, another one is
    asked once more. Yields them."""

    class User(grpc.GenericRpcHandler):
        def service(self, details):
            def answer(_request, context):
                if not system.is_user_well:
                    context.abort(grpc.StatusCode.UNAVAILABLE, "out of order")
                return b""
            return grpc.unary_unary_rpc_method_handler(answer)

    server = grpc.server(ThreadPoolExecutor(4), handlers=[User()])
    addresses = [f"127.0.0.1:{processes.free_port()}" for _ in range(2)]
    for address in addresses:
        server.add_insecure_port(address)
    server.start()
    try:
        yield addresses
    finally:
        server.stop(None).wait()


def _free_ports():
    """The first of as many free ports in a row as `microblog up` takes."""
    for _ in range(100):
        base = processes.free_port()
        try:
            for port in range(base, base + PORTS):
                with socket.socket() as listener:
                    listener.bind(("127.0.0.1", port))
        except OSError:
            continue
        return base
    raise SystemExit("there are no ten free ports in a row")
