"""Checks alerts and dashboards against a running microblog. Prints all findings, and fails if there
are any.

    target/tools/bin/python -B deploy/telemetry/check --programs target/debug

Reads the files and runs the unit tests of the alerts. Then it starts a system, and a Prometheus
(Debian's version suffices) that scrapes it and evaluates the alerts. No alert may be active in
normal operation. Then it injects faults, and the alerts for them must become active. Every metric
and label in a query must have been scraped. At the end, it injects faults into the files, and the
checks must find them. All processes use free ports of 127.0.0.1 and end with the check.
"""

import argparse
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

TELEMETRY = Path(__file__).resolve().parents[1]
# The modules that the checks share.
sys.path.append(str(TELEMETRY.parent / "checks"))

import breakages  # noqa: E402
import files  # noqa: E402
import metrics  # noqa: E402
import scraping  # noqa: E402
import system  # noqa: E402
import trouble  # noqa: E402
from report import Report  # noqa: E402


def main():
    arguments = _arguments()
    report = Report()
    telemetry = files.Telemetry(TELEMETRY)
    files.check_by_promtool(report, telemetry)
    files.check(report, telemetry)
    done = f"{len(telemetry.alerts)} alerts, {len(telemetry.panels)} panels"
    # A system is started only if the files have no findings.
    if not report.findings:
        with TemporaryDirectory(prefix="microblog-telemetry-") as directory:
            with report.completed():
                done += _try(report, telemetry, arguments.programs.resolve(), Path(directory))
    for finding in report.findings:
        print(finding)
    print(f"{done}: {len(report.findings)} findings")
    return 1 if report.findings else 0


def _try(report, telemetry, programs, directory):
    """Starts a system with a Prometheus, and compares the files with the scraped metrics. Returns a
    summary."""
    with system.running(programs, directory) as microblog:
        with scraping.running(telemetry, microblog.targets, directory) as prometheus:
            with report.at("in normal operation"):
                trouble.check_no_alerts(report, telemetry, microblog, prometheus)
            with report.at("during faults"):
                trouble.check_faults(report, microblog, prometheus)
            metrics.settle(telemetry, prometheus)
            scraped = metrics.Scraped(prometheus)
            metrics.check(report, telemetry, scraped)
            if report.findings:
                return ""
            return f", {breakages.prove(report, telemetry, scraped)} breakages"


def _arguments():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--programs", type=Path, required=True, help="directory of the binaries")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
