"""The whole system in one process, for checks of its gateway."""

import os
from contextlib import contextmanager, nullcontext
from pathlib import Path
from tempfile import TemporaryDirectory

import processes

# Of `microblog up`.
PORTS = 10


def add_arguments(parser):
    """Adds the choice between a running gateway and a new one."""
    system = parser.add_mutually_exclusive_group(required=True)
    system.add_argument("--url", help="the URL of a running gateway")
    system.add_argument("--program", type=Path, help="the program `microblog` to start")


def chosen(arguments):
    """The context of the chosen gateway, which has its URL."""
    return nullcontext(arguments.url) if arguments.url else gateway(arguments.program)


@contextmanager
def gateway(program):
    """Runs `microblog up`, and yields the URL of its gateway."""
    with TemporaryDirectory(prefix="microblog-check-") as directory:
        base = processes.free_ports(PORTS)
        command = [program.resolve(), "up", "--data-dir", "data", "--port-base", str(base)]
        environment = {"PATH": os.environ["PATH"]}
        with processes.running(command, Path(directory), env=environment) as process:
            is_ready = lambda: "\nready" in process.log.read_text()
            processes.until_ready(process, "microblog up", is_ready)
            yield f"http://127.0.0.1:{base}"
