"""Checks alerts and dashboards against a microblog that runs. Tells all that is wrong, and fails if
anything is.

    target/tools/bin/python -B deploy/telemetry/check --programs target/debug

The files are read; the unit tests of the alerts are run; then a system is started, and a Prometheus
(Debian's is enough) that scrapes it and evaluates the alerts. While all is well none may be active;
then some things are put out of order, and the alerts for them have to be. Every metric and every
label in a query must have been scraped. In the end files are broken on purpose, and that has to be
noticed. All on 127.0.0.1, on free ports, and gone afterwards.
"""

import argparse
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

TELEMETRY = Path(__file__).resolve().parents[1]
# What the check of Kubernetes has for processes and for findings serves here as well.
sys.path.append(str(TELEMETRY.parent / "kubernetes" / "check"))

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
    # What is wrong on paper need not be tried.
    if not report.findings:
        with TemporaryDirectory(prefix="microblog-telemetry-") as directory:
            done += _try(report, telemetry, arguments.programs.resolve(), Path(directory))
    for finding in report.findings:
        print(finding)
    print(f"{done}: {len(report.findings)} findings")
    return 1 if report.findings else 0


def _try(report, telemetry, programs, directory):
    """Starts a system with a Prometheus, and compares the files with what is scraped. Returns what
    was done beyond."""
    with system.running(programs, directory) as microblog:
        with scraping.running(telemetry, microblog.targets, directory) as prometheus:
            with report.at("with all well"):
                trouble.check_calm(report, telemetry, microblog, prometheus)
            with report.at("in trouble"):
                trouble.check_trouble(report, microblog, prometheus)
            metrics.settle(telemetry, prometheus)
            scraped = metrics.Scraped(prometheus)
            metrics.check(report, telemetry, scraped)
            if report.findings:
                return ""
            return f", {breakages.prove(report, telemetry, scraped)} breakages"


def _arguments():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--programs", type=Path, required=True, help="where they were built")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
