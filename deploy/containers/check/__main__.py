"""Builds the image, and runs it: by the Compose files and by the Kubernetes overlays. Prints all
findings, and fails if there are any.

    target/tools/bin/python -B deploy/containers/check [--programs DIR] [--quick | --prove]

It needs root on Debian 12, the packages of deploy/install-podman, and the tools of
deploy/install-tools. Its containers run in namespaces of their own, apart from the rest of the
machine. It needs no registry: the base images are made of Debian's packages, once, and kept in
target/containers. In place of the images of Redis 7.2, PostgreSQL 17 and the OpenTelemetry collector,
they have Redis 7.0, PostgreSQL 15 and a program that counts telemetry.

With --programs, the image has the program of a directory, and its build stage does not run. Otherwise,
all is compiled in the container, by the toolchain of this machine; that needs crates.io.

With --quick, it builds the image and starts one pod, in less than a minute. deploy/test does so.

What a manifest says of the user, the privileges, the memory and the ports of a container is compared
with what the kernel enforces.

With --prove, it injects faults into copies of the files instead, one at a time, and the check must
find each. For a fault, it starts only the containers that show it.
"""

import argparse
import fcntl
import os
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

DEPLOY = Path(__file__).resolve().parents[2]
TARGET = Path(os.environ.get("CARGO_TARGET_DIR", DEPLOY.parent / "target"))
# The modules that the checks share.
sys.path.append(str(DEPLOY / "checks"))
# Overlays as containers, and clients for health.
sys.path.append(str(DEPLOY / "kubernetes/check"))

import bases  # noqa: E402
import breakages  # noqa: E402
import composed  # noqa: E402
import image  # noqa: E402
import isolation  # noqa: E402
import played  # noqa: E402
from compose import Compose  # noqa: E402
from overlay import Overlay  # noqa: E402
from podman import Podman  # noqa: E402
from processes import TIMEOUT_S  # noqa: E402
from report import Report  # noqa: E402

PARTS = ("compose", "colocated", "local")


def main():
    arguments = _arguments()
    isolation.hide_mounts()
    state = arguments.state.resolve()
    if isolation.is_inside():
        return _run(arguments, Podman(state, Path("/run/microblog-check")))
    state.mkdir(parents=True, exist_ok=True)
    with (state / "lock").open("w") as lock:
        # Another check would remove the containers of this one.
        fcntl.flock(lock, fcntl.LOCK_EX)
        with TemporaryDirectory(prefix="microblog-containers-") as run:
            _make_images(arguments, Podman(state, Path(run)))
        return isolation.run_again()


def _make_images(arguments, podman):
    """Outside of the namespaces, which have no way to Debian's mirrors."""
    begun = time.monotonic()
    stores = set() if arguments.quick else {
        one.image for one in Compose(DEPLOY).containers if one.image.startswith("docker.io/")
    }
    for name in bases.make(podman, stores, with_rust=arguments.programs is None):
        print(f"made the base image {name}", flush=True)
    image.build(podman, DEPLOY.parent, arguments.programs)
    print(f"images are ready after {time.monotonic() - begun:.0f} s", flush=True)


def _run(arguments, podman):
    report = Report()
    podman.remove_all()
    try:
        size = image.check(
            report, podman, DEPLOY.parent, is_compiled=arguments.programs is None,
        )
        print(f"image: {size / 1e6:.0f} MB")
        with TemporaryDirectory(prefix="microblog-check-") as directory:
            if arguments.prove:
                return _print(report, f"{breakages.prove(report, podman, DEPLOY)} breakages")
            if arguments.quick:
                # It starts without stores, and without the services that it calls.
                names = ["gateway"]
                played.check_some(
                    report, podman, _overlay("local"), Path(directory), names, TIMEOUT_S,
                )
                return _print(report, "the image and a pod of the gateway")
            program = _program(arguments, podman, Path(directory))
            if "compose" in arguments.only:
                composed.check(report, podman, DEPLOY, program, directory)
            for name in PARTS[1:]:
                if name in arguments.only:
                    played.check(report, podman, _overlay(name), program, Path(directory))
    finally:
        podman.remove_all()
    return _print(report, ", ".join(arguments.only))


def _overlay(name):
    return Overlay(DEPLOY / "kubernetes/overlays" / name)


def _print(report, done):
    """Prints the findings, and returns the exit code."""
    for finding in report.findings:
        print(finding)
    print(f"{done}: {len(report.findings)} findings")
    return 1 if report.findings else 0


def _program(arguments, podman, directory):
    """The program `microblog` for this machine, of the image."""
    if arguments.programs:
        return arguments.programs.resolve() / "microblog"
    mounted = podman.podman("image", "mount", image.NAME)
    # `microblog` in the directory itself is where the sessions are.
    program = directory / "program"
    program.write_bytes((Path(mounted) / "usr/local/bin/microblog").read_bytes())
    program.chmod(0o755)
    return program


def _arguments():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--programs", type=Path, help="directory of the built microblog")
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--only", nargs="+", choices=PARTS, default=PARTS)
    how.add_argument("--quick", action="store_true", help="only the image and one pod")
    how.add_argument("--prove", action="store_true", help="inject faults that the check must find")
    parser.add_argument(
        "--state", type=Path, default=TARGET / "containers", help="directory of the images",
    )
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
