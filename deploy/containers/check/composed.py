"""Runs compose.yaml as it is, by podman-compose."""

import socket
import sys
import time
from pathlib import Path
from urllib.request import urlopen

import confinement
import image
from compose import Compose
from podman import Failed
from processes import TIMEOUT_S, eventually
from rpc import Channel
from tour import Caller

FILE = "compose.yaml"
# Of deploy/install-tools, as the Python that runs this.
PODMAN_COMPOSE = Path(sys.executable).parent / "podman-compose"
GATEWAY = "http://127.0.0.1:50050"
METRICS = "http://127.0.0.1:9464/metrics"
# Of the servers, by service.
PORTS = {
    "gateway": 50050, "user": 50051, "relation": 50052, "post": 50053, "timeline": 50054,
    "notice": 50055,
}
STORES = {"redis": 6379, "postgresql": 5432}
OTHERS = {"collector": 9464}


def check(report, podman, deploy, program, directory):
    """Starts all services, makes the tour, removes the containers, and expects the data after a new
    start."""
    caller = Caller(program, GATEWAY, directory)
    with report.at(FILE):
        try:
            _start(report, podman, deploy)
            caller.tour()
            caller.write()
            _check_restart(report, podman)
            _check_telemetry(report)
            # podman-compose applies grace periods at its own `stop` only.
            graces = {one.name: one.grace_s for one in Compose(deploy / FILE).containers}
            for name in PORTS:
                podman.check_stop(report, f"microblog_{name}_1", graces[name])
            _compose(podman, deploy, "down")
            _start(report, podman, deploy)
            caller.read()
            caller.tour()
            print(f"{FILE}: the data of the first run are in the second")
        except Failed as failure:
            report.wrong(str(failure))
        finally:
            podman.remove_all()


def check_some(report, podman, deploy, names, patience_s):
    """The part of `check` that needs only these services."""
    with report.at(FILE):
        try:
            # In this order: see `run_some` of played.py.
            for name in names:
                _start(report, podman, deploy, [name], patience_s)
        except Failed as failure:
            report.wrong(str(failure))
        finally:
            podman.remove_all()


def _compose(podman, deploy, *words):
    return podman.command(PODMAN_COMPOSE, "--file", deploy / FILE, *words)


def _start(report, podman, deploy, names=(*PORTS, *STORES, *OTHERS), patience_s=TIMEOUT_S):
    """Starts services, waits until they are healthy, and checks how they are confined."""
    begun = time.monotonic()
    _compose(podman, deploy, "up", "--detach", *names)
    services = Compose(deploy / FILE).data["services"]
    for name in names:
        container = f"microblog_{name}_1"
        address = podman.address(container)
        is_healthy = podman.eventually(container, lambda: _is_healthy(name, address), patience_s)
        report.unless(is_healthy, f"{name} is never healthy:{podman.end_of_log(container)}")
        if not podman.has_ended(container):
            with report.at(name):
                _check_confinement(report, podman.container(container), name, services[name])
    print(f"{FILE}: {', '.join(names)} started in {time.monotonic() - begun:.0f} s")


def _is_healthy(name, address):
    """Whether a server is, or whether another service accepts connections."""
    if name in PORTS:
        return bool(Channel(PORTS[name], host=address).is_serving("", TIMEOUT_S))
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
        container = f"microblog_{name}_1"
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
