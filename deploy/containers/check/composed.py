"""Runs compose.yaml as it is, by podman-compose."""

import sys
import time
from pathlib import Path
from urllib.request import urlopen

from compose import Compose
from processes import TIMEOUT_S, eventually
from rpc import Channel
from tour import Caller, Failed

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


def check(report, podman, deploy, program, directory):
    """Starts all services, makes the tour, removes the containers, and expects the data after a new
    start."""
    def compose(*words):
        return podman.command(PODMAN_COMPOSE, "--file", deploy / FILE, *words)

    caller = Caller(program, GATEWAY, directory)
    with report.at(FILE):
        try:
            _start(report, podman, compose)
            caller.tour()
            caller.write()
            _check_restart(report, podman)
            _check_telemetry(report)
            _check_stop(report, podman, deploy)
            compose("down")
            _start(report, podman, compose)
            caller.read()
            caller.tour()
            print(f"{FILE}: the data of the first run are in the second")
        except Failed as failure:
            report.wrong(str(failure))
        finally:
            compose("down", "--volumes")


def _start(report, podman, compose):
    begun = time.monotonic()
    compose("up", "--detach")
    for name, port in PORTS.items():
        container = f"microblog_{name}_1"
        channel = Channel(port, host=podman.address(container))
        is_healthy = eventually(lambda: channel.is_serving("", TIMEOUT_S))
        report.unless(is_healthy, f"{name} is never healthy:{podman.end_of_log(container)}")
    print(f"{FILE}: all servers are healthy after {time.monotonic() - begun:.0f} s")


def _check_restart(report, podman):
    """Checks that the stores start a second time in the same container, as after a crash."""
    for name in "redis", "postgresql":
        container = f"microblog_{name}_1"
        podman.podman("restart", container)
        time.sleep(1)
        state = podman.container(container)["State"]
        report.unless(
            state["Running"], f"{name} does not start again:{podman.end_of_log(container)}"
        )


def _check_telemetry(report):
    """Checks that telemetry of each server arrives at the collector's place."""
    missing = set(PORTS)
    def arrives():
        with urlopen(METRICS, timeout=TIMEOUT_S) as answer:
            text = answer.read().decode()
        missing.difference_update({name for name in PORTS if f'"microblog-{name}"' in text})
        return not missing

    eventually(arrives)
    report.same("servers whose telemetry is missing", missing, set())


def _check_stop(report, podman, deploy):
    """Checks that the servers end within their grace period after SIGTERM."""
    # podman-compose applies it at its own `stop` only.
    graces = {one.name: one.grace_s for one in Compose(deploy / FILE).containers}
    for name in PORTS:
        container = f"microblog_{name}_1"
        grace_s = graces[name]
        begun = time.monotonic()
        podman.podman("stop", "--time", grace_s, container)
        took_s = time.monotonic() - begun
        code = podman.container(container)["State"]["ExitCode"]
        report.same(f"the exit code of {name}", code, 0)
        print(f"{FILE}: {name} ends {took_s:.1f} s after SIGTERM, of {grace_s} s")
