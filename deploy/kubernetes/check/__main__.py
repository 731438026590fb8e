"""Checks the deployment files: the Kubernetes overlays, the Compose files, the Dockerfile. Prints
all findings, and fails if there are any.

    target/tools/bin/python -B deploy/kubernetes/check --programs target/debug [--static | --prove]

The built programs are the reference. `--help` lists their flags. The check also starts them on
127.0.0.1 as each overlay and the Compose files would, and probes them as the kubelet would. It needs
openssl, redis-server and PostgreSQL; with --static, only openssl.
"""

import argparse
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

DEPLOY = Path(__file__).resolve().parents[2]
# The modules that the checks share.
sys.path.append(str(DEPLOY / "checks"))

import breakages  # noqa: E402
import probing  # noqa: E402
import reading  # noqa: E402
from programs import Programs  # noqa: E402
from report import Report  # noqa: E402


def main():
    arguments = _arguments()
    programs = Programs(DEPLOY.parent, arguments.programs.resolve())
    report = Report()
    if arguments.prove:
        done = f"{breakages.prove(report, DEPLOY, programs)} breakages"
    else:
        overlays = reading.overlays_of(DEPLOY)
        composed = reading.check(report, DEPLOY, programs, overlays)
        objects = sum(len(overlay.objects) for overlay in overlays)
        done = f"{len(overlays)} overlays, {objects} objects"
        # The programs are started only if the files have no findings.
        if not report.findings and not arguments.static:
            _try_all(report, programs, overlays, composed)
    for finding in report.findings:
        print(finding)
    print(f"{done}: {len(report.findings)} findings")
    return 1 if report.findings else 0


def _try_all(report, programs, overlays, composed):
    systems = [probing.of_overlay(overlay, overlays) for overlay in overlays]
    systems += [probing.of_compose(one) for one in composed]
    reports = [report.at_once(system.name) for system in systems]
    with ThreadPoolExecutor(len(systems)) as pool:
        trials = [
            pool.submit(probing.check, own, system, programs)
            for own, system in zip(reports, systems)
        ]
    for own, trial in zip(reports, trials):
        with own.completed():
            trial.result()
        report.take(own)


def _arguments():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--programs", type=Path, required=True, help="directory of the binaries")
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--static", action="store_true", help="start nothing")
    how.add_argument("--prove", action="store_true", help="inject faults that the checks must find")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
