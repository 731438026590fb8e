"""Starts the servers of an overlay or of Compose files with the same command and environment,
except for addresses, which are on 127.0.0.1. Probes them as the kubelet would, makes a tour
through the gateway, and stops them as the kubelet would."""

import os
import re
import signal
import subprocess
import time
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.request import urlopen

import stores
from containers import Container
from overlay import containers
from processes import TIMEOUT_S, end_of, eventually, free_port, running
from programs import COLOCATED
from rpc import Channel, telemetry

# The tour makes about seventy calls in sequence, and retries those that are UNAVAILABLE.
TOUR_S = 5 * TIMEOUT_S


@dataclass
class System:
    """All containers of a deployment."""

    name: str
    containers: list[Container]
    redis: Container
    """The container of its Redis, or a similar one if the deployment has none."""
    postgresql: Container
    """The same for PostgreSQL."""


def of_overlay(overlay, overlays):
    """The system of an overlay. Without stores in the overlay, uses those of another overlay
    with the passwords of the servers."""
    own = list(containers(overlay))
    every = [one for other in overlays for one in containers(other)]

    def store(name, with_passwords):
        found = [one for one in own if one.name == name]
        return found[0] if found else with_passwords(
            next(one for one in every if one.name == name), own
        )

    redis, postgresql = store("redis", _redis_with), store("postgresql", _postgresql_with)
    return System(f"overlay {overlay.name}", own, redis, postgresql)


def of_compose(compose):
    """The system of Compose files, whose Redis has no probe."""
    redis = compose.named("redis")
    ping = (
        "REDISCLI_AUTH=$(cat /run/secrets/redis/admin)"
        " redis-cli -p 6379 --user admin ping | grep -q PONG"
    )
    redis = replace(redis, probes={"readinessProbe": {"exec": {"command": ["sh", "-c", ping]}}})
    return System(compose.name, compose.containers, redis, compose.named("postgresql"))


def _redis_with(redis, servers):
    """A Redis with the passwords of the servers."""
    directory = redis.command[2]
    passwords = {url.username: password for url, password in _logins(servers, "REDIS")}
    passwords["admin"] = redis.mounts[directory]["admin"]
    return replace(redis, mounts=redis.mounts | {directory: passwords})


def _postgresql_with(postgresql, servers):
    """A PostgreSQL with the database and the passwords of the servers."""
    directory = postgresql.environment["DATABASE_PASSWORDS"]
    passwords = {"admin": postgresql.mounts[directory]["admin"]}
    environment = dict(postgresql.environment)
    for url, password in _logins(servers, "DATABASE"):
        environment["POSTGRES_DB"] = url.path[1:]
        passwords[url.username] = password
    mounts = postgresql.mounts | {directory: passwords}
    return replace(postgresql, environment=environment, mounts=mounts)


def _logins(servers, store):
    """The addresses of a store with their passwords, of those servers that have one."""
    return [login for one in servers for login in one.logins(store)]


def check(report, system, programs):
    """Starts a system, first without its stores, and checks its behavior."""
    with TemporaryDirectory(prefix="microblog-check-") as directory, ExitStack() as stack:
        try:
            _Trial(report, system, programs, Path(directory), stack).run()
        except stores.Failed as failure:
            report.wrong(str(failure))


@dataclass
class _Server:
    container: Container
    program: object
    process: subprocess.Popen
    channel: Channel
    probed: Channel
    """The client for probes: of the same port, or of a separate health port."""
    metrics: str | None
    """The address of the metrics, if it serves them."""


class _Trial:
    def __init__(self, report, system, programs, directory, stack):
        self.report, self.system, self.programs = report, system, programs
        self.directory, self.stack = directory, stack
        # The local port of each called name. All nodes of a store share one.
        names = [*programs.alone, "redis", "postgresql"]
        self.ports = {name: free_port() for name in names}

    def run(self):
        self.ports["collector"], received = self.stack.enter_context(telemetry())
        servers = [
            self._start(one) for one in self.system.containers if one.name in self.programs.servers
        ]
        for server in servers:
            self._check_alive(server)
        database = self._start_stores()
        for server in servers:
            self._check_ready(server)
        self._check_tour()
        for server in servers:
            self._check_tables(server, database)
        self._check_end(servers)
        for server in servers:
            with self.report.at(server.container.name):
                self._check_telemetry(server, received)

    def _start(self, container):
        program = self.programs.servers[container.name]
        environment = dict(container.environment)
        for variable, callee, host, port in container.addresses(program):
            here = f"127.0.0.1:{self.ports[callee]}"
            value = re.sub(rf"(?<=[/@,]){re.escape(host)}(:{port})?", here, environment[variable])
            environment[variable] = value.replace("sslmode=require", "sslmode=disable")
        self._mount(container, environment)
        for service, variable in program.listens.items():
            environment[variable] = f"127.0.0.1:{self.ports[service]}"
        port = self.ports[next(iter(program.listens))]
        channel = probed = Channel(port, container.tls_files)
        if "MICROBLOG_HEALTH_LISTEN" in environment:
            health = free_port()
            environment["MICROBLOG_HEALTH_LISTEN"] = f"127.0.0.1:{health}"
            probed = Channel(health)
        metrics = None
        if "MICROBLOG_METRICS_LISTEN" in environment:
            metrics = environment["MICROBLOG_METRICS_LISTEN"] = f"127.0.0.1:{free_port()}"
        command = [program.path, *container.command[1:]]
        process = self.stack.enter_context(running(command, self.directory, env=environment))
        return _Server(container, program, process, channel, probed, metrics)

    def _mount(self, container, environment):
        """Writes the files of a server's mounts, and adapts the paths in its variables."""
        for path, files in container.mounts.items():
            here = self.directory / container.name / path.lstrip("/")
            # A mount may be below another.
            here.mkdir(parents=True, exist_ok=True)
            for name, text in (files or {}).items():
                (here / name).write_text(text)
            for variable, value in environment.items():
                if value.startswith(f"{path}/"):
                    environment[variable] = f"{here}{value.removeprefix(path)}"

    def _start_stores(self):
        kind = _logins(self.system.containers, "REDIS")[0][0].scheme
        self.stack.enter_context(stores.redis(
            self.system.redis, self.directory / "redis", self.ports["redis"],
            is_cluster="cluster" in kind,
        ))
        directory, port = self.directory / "postgresql", self.ports["postgresql"]
        database = stores.Database(self.system.postgresql, directory, port)
        self.stack.enter_context(database.running())
        return database

    def _check_alive(self, server):
        """Checks that a server without its stores starts, is live, and is not ready."""
        with self.report.at(server.container.name):
            probe = server.container.probes.get("startupProbe", {})
            # On a shared machine, this may exceed the kubelet's limit.
            within_s = probe.get("periodSeconds", 1) * probe.get("failureThreshold", 1)
            within_s = max(within_s, TIMEOUT_S)
            has_started = lambda: self._passes(server, "startupProbe") or self._ended(server)
            self.report.unless(
                eventually(has_started, within_s) and not self._ended(server),
                f"does not start:{end_of(server.process.log)}",
            )
            self.report.unless(self._is_live(server), "is not live without stores")
            needs_store = "redis" in server.program.callees.values()
            self.report.unless(
                not needs_store or not self._passes(server, "readinessProbe"),
                "is ready without Redis",
            )

    def _check_ready(self, server):
        """Checks that a server becomes ready, and that its readiness probe names its own
        service."""
        with self.report.at(server.container.name):
            self.report.unless(
                eventually(lambda: self._passes(server, "readinessProbe")),
                f"is never ready:{end_of(server.process.log)}",
            )
            self.report.unless(self._is_live(server), "is not live")
            self._check_metrics(server)
            probe = server.container.probes.get("readinessProbe")
            if probe and not server.program.arguments:
                service, served = probe["grpc"]["service"], server.channel.services()
                self.report.unless(
                    service in served, f"its readinessProbe asks for {service!r}, but it serves {served}"
                )

    def _check_metrics(self, server):
        """Checks that the metrics of a server, if any, report that it is serving."""
        if server.metrics is None:
            return
        serves = re.compile(r"^microblog_serving\{.*\} 1$", re.MULTILINE)
        def shows():
            with urlopen(f"http://{server.metrics}/metrics", timeout=TIMEOUT_S) as answer:
                return serves.search(answer.read().decode())

        # Polls, because its store may be slow briefly.
        self.report.unless(eventually(shows), "its metrics do not report it as serving")

    def _check_tables(self, server, database):
        """Checks that a server with a database has tables in a schema of its own."""
        for url, _ in server.container.logins("DATABASE"):
            tables = (
                "select 1 from pg_tables where schemaname = tableowner"
                f" and tableowner = '{url.username}' limit 1"
            )
            with self.report.at(server.container.name):
                self.report.unless(
                    eventually(lambda: database.query(tables) == "1"),
                    f"has no tables in its schema:{end_of(server.process.log)}",
                )

    def _passes(self, server, name):
        """Whether a probe passes; None if it times out. For Compose, which has no probes, checks
        liveness or the overall health."""
        probe = server.container.probes.get(name, {})
        default = "" if name == "readinessProbe" else "liveness"
        service = probe.get("grpc", {}).get("service", default)
        return server.probed.is_serving(service, probe.get("timeoutSeconds", 1))

    def _is_live(self, server):
        """Whether the kubelet would not restart a server, given the failure threshold of its
        probe."""
        probe = server.container.probes.get("livenessProbe", {})
        within_s = probe.get("periodSeconds", 10) * (probe.get("failureThreshold", 3) - 1)
        return eventually(lambda: self._passes(server, "livenessProbe"), within_s)

    def _ended(self, server):
        return server.process.poll() is not None

    def _check_tour(self):
        """Makes a tour through the gateway, which uses all services and stores."""
        program = self.programs.program("microblog").path
        address = f"127.0.0.1:{self.ports['gateway']}"
        command = [program, "demo", "--gateway-url", f"http://{address}"]
        gateway = next(
            one for one in self.system.containers if one.name in ("gateway", COLOCATED)
        )
        if files := gateway.tls_files:
            authority = self.directory / "ca.crt"
            authority.write_text(files["ca.crt"])
            command = [program, "--ca-file", authority, "demo", "--gateway-url",
                       f"https://{address}"]
        try:
            tour = subprocess.run(
                command, capture_output=True, text=True,
                timeout=TOUR_S, env={"PATH": os.environ["PATH"]},
            )
        except subprocess.TimeoutExpired:
            self.report.wrong(f"`microblog demo` takes longer than {TOUR_S} s")
            return
        output = "\n  ".join(["", *(tour.stdout + tour.stderr).splitlines()[-6:]])
        self.report.unless(tour.returncode == 0, f"`microblog demo` fails:{output}")

    def _check_end(self, servers):
        """Stops all servers, and checks that they drain: not ready at once, still serving
        callers that have not refreshed their endpoints, and exited in time."""
        begun = time.monotonic()
        for server in servers:
            server.process.send_signal(signal.SIGTERM)
        for server in servers:
            with self.report.at(server.container.name):
                self._check_drain(server, begun)
        for server in servers:
            left_s = begun + server.container.grace_s - time.monotonic()
            with self.report.at(server.container.name):
                try:
                    code = server.process.wait(max(left_s, 0))
                    self.report.same(f"its exit code{end_of(server.process.log)}\n ", code, 0)
                except subprocess.TimeoutExpired:
                    self.report.wrong("does not end within its grace period")

    def _check_drain(self, server, begun):
        delay = server.program.setting(server.container.environment, "MICROBLOG_DRAIN_DELAY_MS")
        delay_s = int(delay) / 1000
        if delay_s < 2:
            return
        end = begun + delay_s
        # Within four fifths of the delay: after it, nothing is guaranteed.
        is_unready = eventually(
            lambda: not self._passes(server, "readinessProbe"),
            (end - time.monotonic()) * 4 / 5,
        )
        # A timeout, such as on a busy machine, is no result: the probe is repeated.
        answers = []
        def is_answered():
            answers.append(self._passes(server, "livenessProbe"))
            return answers[-1] is not None

        eventually(is_answered, end - time.monotonic())
        if time.monotonic() < end:
            self.report.unless(is_unready, "is ready while it drains")
            self.report.unless(answers[-1], "does not answer during the drain delay")

    def _check_telemetry(self, server, received):
        if "collector" not in {callee for _, callee, _, _ in
                               server.container.addresses(server.program)}:
            return
        attributes = server.container.environment.get("OTEL_RESOURCE_ATTRIBUTES", "")
        values = [one.partition("=")[2] for one in attributes.split(",") if one]
        wanted = [server.program.name, *values]
        sent = any(all(word.encode() in one for word in wanted) for one in received)
        self.report.unless(sent, f"sends no telemetry as {' and '.join(wanted)}")
