"""Runs the Compose files as they are, by podman-compose."""

import socket
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from urllib.request import urlopen

import confinement
import image
from compose import WITH_TLS, Compose, keys
from podman import Failed
from processes import TIMEOUT_S, eventually
from rpc import Channel
from tour import Caller

# Of deploy/install-tools, as the Python that runs this.
PODMAN_COMPOSE = Path(sys.executable).parent / "podman-compose"
GATEWAY = "127.0.0.1:50050"
METRICS = "http://127.0.0.1:9464/metrics"
# Of the servers, by service.
PORTS = {
    "gateway": 50050, "user": 50051, "relation": 50052, "post": 50053, "timeline": 50054,
    "notice": 50055,
}
STORES = {"redis": 6379, "postgresql": 5432}
OTHERS = {"collector": 9464}


def check(report, podman, deploy, program, directory):
    """Starts all services, makes the tour, removes the containers, and expects the data after
    another start, with TLS and keys."""
    with keys(deploy) as variables:
        plain, with_tls = Compose(deploy), Compose(deploy, WITH_TLS, variables)
        try:
            with _at(report, plain):
                _check_plain(report, podman, plain, Caller(program, GATEWAY, directory))
            with _at(report, with_tls):
                files = with_tls.named("gateway").tls_files
                caller = Caller(program, GATEWAY, directory, files)
                _check_with_tls(report, podman, with_tls, caller)
        finally:
            podman.remove_all()


def check_some(report, podman, deploy, names, patience_s):
    """The part of `check` that needs only these services, with TLS and keys."""
    with keys(deploy) as variables:
        composed = Compose(deploy, WITH_TLS, variables)
        try:
            with _at(report, composed):
                # In this order: see `run_some` of played.py.
                for name in names:
                    _start(report, podman, composed, [name], patience_s)
        finally:
            podman.remove_all()


@contextmanager
def _at(report, composed):
    """Adds the files to the findings of a block, and reports what fails."""
    with report.at(composed.name):
        try:
            yield
        except Failed as failure:
            report.wrong(str(failure))


def _check_plain(report, podman, composed, caller):
    _start(report, podman, composed)
    caller.tour()
    caller.write()
    _check_restart(report, podman)
    _check_telemetry(report)
    for name in PORTS:
        # podman-compose applies the grace period at its own `stop` only.
        podman.check_stop(report, _running(name), composed.named(name).grace_s)


def _check_with_tls(report, podman, composed, caller):
    _compose(podman, composed, "down")
    _start(report, podman, composed)
    caller.read()
    caller.tour()
    print(f"{composed.name}: the data of the first run are in the second")
    answering = {name for name in PORTS if _answers_anyone(podman, composed, name)}
    report.same("servers that require no client certificate", answering, {"gateway"})


def _answers_anyone(podman, composed, name):
    """Whether a server answers a caller without a certificate."""
    authority = {"ca.crt": composed.named(name).tls_files["ca.crt"]}
    channel = Channel(PORTS[name], authority, podman.address(_running(name)))
    return bool(channel.is_serving("", TIMEOUT_S))


def _running(name):
    """Podman's name of a service's container."""
    return f"microblog_{name}_1"


def _compose(podman, composed, *words):
    files = [word for file in composed.files for word in ("--file", file)]
    return podman.command(
        PODMAN_COMPOSE, *files, *words, env=podman.environment | composed.variables,
    )


def _start(report, podman, composed, names=(*PORTS, *STORES, *OTHERS), patience_s=TIMEOUT_S):
    """Starts services, waits until they are healthy, and checks how they are confined."""
    begun = time.monotonic()
    _compose(podman, composed, "up", "--detach", *names)
    services = composed.data["services"]
    for name in names:
        container, files = _running(name), composed.named(name).tls_files
        address = podman.address(container)
        is_healthy = podman.eventually(
            container, lambda: _is_healthy(name, address, files), patience_s,
        )
        report.unless(is_healthy, f"{name} is never healthy:{podman.end_of_log(container)}")
        if not podman.has_ended(container):
            with report.at(name):
                _check_confinement(report, podman.container(container), name, services[name])
    print(f"{composed.name}: {', '.join(names)} started in {time.monotonic() - begun:.0f} s")


def _is_healthy(name, address, tls_files=None):
    """Whether a server is, or whether another service accepts connections."""
    if name in PORTS:
        return bool(Channel(PORTS[name], tls_files, address).is_serving("", TIMEOUT_S))
    try:
        socket.create_connection((address, (STORES | OTHERS)[name]), TIMEOUT_S).close()
    except OSError:
        return False
    return True


def _check_confinement(report, container, name, service):
    """Compares what the kernel knows of a service's process with its definition."""
    # The images of others have users of their own.
    user = service.get("user", image.USER if name in PORTS else None)
    ids = [int(number) for number in user.split(":")] if user else (None, None)
    ports = {(PORTS | STORES)[name]} if name not in OTHERS else None
    confinement.check(report, container["State"]["Pid"], ids, ports)


def _check_restart(report, podman):
    """Checks that the stores start again after a crash, in the same container."""
    for name in STORES:
        container = _running(name)
        podman.podman("kill", "--signal", "KILL", container)
        # Compose has it restarted; podman does not, where a person ended it.
        eventually(lambda: not podman.container(container)["State"]["Running"])
        podman.podman("start", container)
        is_healthy = eventually(lambda: _is_healthy(name, podman.address(container)))
        report.unless(
            is_healthy, f"{name} does not start again:{podman.end_of_log(container)}"
        )


def _check_telemetry(report):
    """Checks that telemetry of each server arrives at what stands in for the collector."""
    missing = set(PORTS)
    def arrives():
        try:
            with urlopen(METRICS, timeout=TIMEOUT_S) as answer:
                text = answer.read().decode()
        except OSError:
            return False
        missing.difference_update({name for name in PORTS if f'"microblog-{name}"' in text})
        return not missing

    eventually(arrives)
    report.same("servers whose telemetry is missing", missing, set())
