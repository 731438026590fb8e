"""Starts the servers of an overlay, or of the Compose file, with exactly the command and
environment that they would have there, but for addresses, which are replaced by some of
127.0.0.1; probes them as the kubelet would; makes a tour through the gateway; and ends them as
the kubelet would."""

import os
import re
import signal
import subprocess
import time
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.parse import unquote, urlsplit
from urllib.request import urlopen

import certificates
import stores
from containers import Container
from overlay import containers
from processes import PATIENCE_S, end_of, eventually, free_port, running
from rpc import Channel, telemetry

# The tour makes about a hundred calls one after the other, and repeats those that are UNAVAILABLE.
TOUR_S = 5 * PATIENCE_S


@dataclass
class System:
    """All containers that are started together."""

    name: str
    containers: list[Container]
    redis: Container
    """How its Redis is started, or one like it where it has none of its own."""

    def addressed(self, variable):
        """The parts of the first address that is given by a variable."""
        values = (one.environment.get(variable) for one in self.containers)
        return urlsplit(next(value for value in values if value))


def of_overlay(overlay, overlays):
    """The system of an overlay. Where Redis is not in it, it is like another overlay's, with the
    passwords that the servers know."""
    own = list(containers(overlay))
    found = [one for one in own if one.name == "redis"]
    if not found:
        every = [one for other in overlays for one in containers(other)]
        found = [_with_passwords(one, own) for one in every if one.name == "redis"]
    return System(f"overlay {overlay.name}", own, found[0])


def of_compose(compose):
    """The system of the Compose file, whose Redis has no probe."""
    redis = next(one for one in compose.containers if one.name == "redis")
    ping = "redis-cli -p 6379 --user admin ping | grep -q PONG"
    password = redis.mounts["/run/secrets/redis"]["admin"]
    probes = {"readinessProbe": {"exec": {"command": ["sh", "-c", ping]}}}
    redis = replace(redis, environment={"REDISCLI_AUTH": password}, probes=probes)
    return System("compose.yaml", compose.containers, redis)


def _with_passwords(redis, servers):
    urls = [urlsplit(one.environment.get("MICROBLOG_REDIS_URL", "")) for one in servers]
    passwords = {url.username: unquote(url.password) for url in urls if url.username}
    passwords["admin"] = redis.environment["REDISCLI_AUTH"]
    return replace(redis, mounts=redis.mounts | {"/run/secrets/redis": passwords})


def check(report, system, programs):
    """Starts a system, first without its stores, and checks what it does."""
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
    """Where probes ask: at the same port, or at one of their own."""
    metrics: str | None
    """Where it shows them, if it does."""


class _Trial:
    def __init__(self, report, system, programs, directory, stack):
        self.report, self.system, self.programs = report, system, programs
        self.directory, self.stack = directory, stack
        # Of each name and port that is called, the port here. Several nodes of one store are one.
        names = [*programs.servers, "redis", "postgresql", "collector"]
        self.ports = {name: free_port() for name in names}

    def run(self):
        came = self.stack.enter_context(telemetry(self.ports["collector"]))
        servers = [
            self._start(one) for one in self.system.containers if one.name in self.programs.servers
        ]
        for server in servers:
            self._check_alive(server)
        archive = self._start_stores()
        for server in servers:
            self._check_ready(server)
        self._check_tour()
        # Its tables, and not the posts of the tour: their authors go at its end, and then they are
        # never archived that were not by then.
        post = next(one for one in servers if one.container.name == "post")
        self.report.unless(
            eventually(lambda: archive.ask("select count(*) from posts")),
            f"nothing came into the archive:{end_of(post.process.log)}",
        )
        self._check_end(servers)
        for server in servers:
            with self.report.at(server.container.name):
                self._check_telemetry(server, came)

    def _start(self, container):
        program = self.programs.servers[container.name]
        environment = dict(container.environment)
        for variable, callee, host, port in container.addresses(program):
            here = f"127.0.0.1:{self.ports[callee]}"
            value = re.sub(rf"(?<=[/@,]){re.escape(host)}(:{port})?", here, environment[variable])
            environment[variable] = value.replace("sslmode=require", "sslmode=disable")
        self._mount(container, environment)
        port = self.ports[container.name]
        environment["MICROBLOG_LISTEN"] = f"127.0.0.1:{port}"
        files = certificates.of(container.name) if container.has_tls else None
        channel = probed = Channel(port, files)
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
        """Makes the files that a server finds in its mounts, and has its variables name them."""
        for path, files in container.mounts.items():
            here = self.directory / container.name / path.lstrip("/")
            here.mkdir(parents=True)
            for name, text in (files or {}).items():
                (here / name).write_text(text)
            for variable, value in environment.items():
                if value.startswith(f"{path}/"):
                    environment[variable] = f"{here}{value.removeprefix(path)}"

    def _start_stores(self):
        kind = self.system.addressed("MICROBLOG_REDIS_URL").scheme
        self.stack.enter_context(stores.redis(
            self.system.redis, self.directory / "redis", self.ports["redis"],
            is_cluster="cluster" in kind,
        ))
        url = self.system.addressed("MICROBLOG_ARCHIVE_URL")
        user, password, database = url.username, unquote(url.password), url.path[1:]
        for own in (one for one in self.system.containers if one.name == "postgresql"):
            names = ("POSTGRES_USER", "POSTGRES_PASSWORD", "POSTGRES_DB")
            user, password, database = (own.environment[name] for name in names)
        directory, port = self.directory / "postgresql", self.ports["postgresql"]
        archive = stores.Archive(directory, port, user, password, database)
        self.stack.enter_context(archive.running())
        return archive

    def _check_alive(self, server):
        """Checks that a server without its stores comes up, lives, and is not ready."""
        with self.report.at(server.container.name):
            probe = server.container.probes.get("startupProbe", {})
            # On a machine that is shared it may take longer than the kubelet would wait.
            within_s = probe.get("periodSeconds", 1) * probe.get("failureThreshold", 1)
            within_s = max(within_s, PATIENCE_S)
            begun = lambda: self._passes(server, "startupProbe") or self._ended(server)
            self.report.unless(
                eventually(begun, within_s) and not self._ended(server),
                f"does not come up:{end_of(server.process.log)}",
            )
            self.report.unless(self._lives(server), "does not live without stores")
            needs_store = "redis" in server.program.callees.values()
            self.report.unless(
                not needs_store or not self._passes(server, "readinessProbe"),
                "is ready without Redis",
            )

    def _check_ready(self, server):
        """Checks that a server gets ready, and that it is itself that is asked for."""
        with self.report.at(server.container.name):
            self.report.unless(
                eventually(lambda: self._passes(server, "readinessProbe")),
                f"is never ready:{end_of(server.process.log)}",
            )
            self.report.unless(self._lives(server), "does not live")
            self._check_metrics(server)
            if probe := server.container.probes.get("readinessProbe"):
                self.report.same(
                    "what its readinessProbe asks for, and what it serves",
                    {probe["grpc"]["service"]}, server.channel.services(),
                )

    def _check_metrics(self, server):
        """Checks that a server which shows metrics says there that it is serving."""
        if server.metrics is None:
            return
        serves = re.compile(r"^microblog_serving\{.*\} 1$", re.MULTILINE)
        def shows():
            with urlopen(f"http://{server.metrics}/metrics", timeout=PATIENCE_S) as answer:
                return serves.search(answer.read().decode())

        # A moment in which its store was slow may have come between.
        self.report.unless(eventually(shows), "does not show in its metrics that it serves")

    def _passes(self, server, name):
        """Whether a probe passes; None if there is no answer in its time. In Compose, which has no
        probes, the process is asked, or the whole."""
        probe = server.container.probes.get(name, {})
        default = "" if name == "readinessProbe" else "liveness"
        service = probe.get("grpc", {}).get("service", default)
        return server.probed.is_serving(service, probe.get("timeoutSeconds", 1))

    def _lives(self, server):
        """Whether a server would not be started again: a probe may fail so many times in a row."""
        probe = server.container.probes.get("livenessProbe", {})
        within_s = probe.get("periodSeconds", 10) * (probe.get("failureThreshold", 3) - 1)
        return eventually(lambda: self._passes(server, "livenessProbe"), within_s)

    def _ended(self, server):
        return server.process.poll() is not None

    def _check_tour(self):
        """Calls the gateway, and through it everybody else and the stores."""
        program = self.programs.program("microblog").path
        address = f"127.0.0.1:{self.ports['gateway']}"
        command = [program, "demo", "--gateway-url", f"http://{address}"]
        if any(one.name == "gateway" and one.has_tls for one in self.system.containers):
            authority = self.directory / "ca.crt"
            authority.write_text(certificates.of("gateway")["ca.crt"])
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
        said = "\n  ".join(["", *(tour.stdout + tour.stderr).splitlines()[-6:]])
        self.report.unless(tour.returncode == 0, f"`microblog demo` fails:{said}")

    def _check_end(self, servers):
        """Ends all servers, and checks that they drain: not ready at once, there for those who have
        not heard yet, gone in time."""
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
                    self.report.same(f"how it ends{end_of(server.process.log)}\n ", code, 0)
                except subprocess.TimeoutExpired:
                    self.report.wrong("does not end within its grace period")

    def _check_drain(self, server, begun):
        delay = server.program.setting(server.container.environment, "MICROBLOG_DRAIN_DELAY_MS")
        delay_s = int(delay) / 1000
        if delay_s < 2:
            return
        end = begun + delay_s
        # A fifth of the delay is left to say so in: later, nothing has to hold any more.
        gone = eventually(
            lambda: not self._passes(server, "readinessProbe"),
            (end - time.monotonic()) * 4 / 5,
        )
        # No answer in time, as on a machine that is busy, says nothing: it is asked again.
        answers = []
        def is_answered():
            answers.append(self._passes(server, "livenessProbe"))
            return answers[-1] is not None

        eventually(is_answered, end - time.monotonic())
        if time.monotonic() < end:
            self.report.unless(gone, "is ready although it is to stop")
            self.report.unless(answers[-1], "does not answer while others may still send to it")

    def _check_telemetry(self, server, came):
        if "collector" not in {callee for _, callee, _, _ in
                               server.container.addresses(server.program)}:
            return
        attributes = server.container.environment.get("OTEL_RESOURCE_ATTRIBUTES", "")
        values = [one.partition("=")[2] for one in attributes.split(",") if one]
        wanted = [server.program.name, *values]
        sent = any(all(word.encode() in one for word in wanted) for one in came)
        self.report.unless(sent, f"sends no telemetry as {' and '.join(wanted)}")
