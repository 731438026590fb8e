"""Static checks of the files, without a running Prometheus: well-formed files, a test and a runbook
for each alert, and unique panels in Grafana."""

import json
import re
import subprocess
from collections import Counter
from dataclasses import dataclass

import yaml

import processes

ANNOTATIONS = {"summary", "description", "runbook"}
SEVERITIES = {"critical", "warning"}
RUNBOOKS = "deploy/telemetry/README.md#"
# Columns of Grafana's grid.
COLUMNS = 24
# The C implementation if available, because the files are read again for each breakage.
LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

# Unit tests of the alerts.
ALERT_TESTS = ["alerts_test.yaml"]

PROMTOOL_S = 10 * processes.TIMEOUT_S


@dataclass(frozen=True)
class Query:
    """A query, its location, and the labels in its texts."""

    place: str
    expression: str
    shown: frozenset = frozenset()
    is_alert: bool = False


class Telemetry:
    """The files of a directory like deploy/telemetry."""

    def __init__(self, directory):
        self.directory = directory
        groups = self.read("alerts.yaml")["groups"]
        self.alerts = [rule for group in groups for rule in group["rules"]]
        self.tests = [test for name in ALERT_TESTS for test in self.read(name)["tests"]]
        self.runbooks = (directory / "README.md").read_text()
        paths = sorted((directory / "dashboards").glob("*.json"))
        self.dashboards = {path.name: json.loads(path.read_text()) for path in paths}

    def read(self, name):
        """The contents of a YAML file."""
        return yaml.load((self.directory / name).read_text(), LOADER)

    @property
    def panels(self):
        """All panels, each with the name of its file."""
        boards = self.dashboards.items()
        return [(name, panel) for name, board in boards for panel in board["panels"]]

    @property
    def queries(self):
        """All queries: of alerts, panels and dashboard variables."""
        queries = [_of_alert(alert) for alert in self.alerts]
        for name, panel in self.panels:
            queries += [_of_panel(name, panel, target) for target in panel["targets"]]
        for name, board in self.dashboards.items():
            for variable in board["templating"]["list"]:
                chosen = re.fullmatch(r"label_values\((.+), (\w+)\)", variable["query"])
                if chosen:
                    place = f"{name}, the variable {variable['name']}"
                    queries.append(Query(place, chosen[1], frozenset({chosen[2]})))
        return queries


def _of_alert(alert):
    shown = re.findall(r"\$labels\.(\w+)", " ".join(alert["annotations"].values()))
    return Query(alert["alert"], alert["expr"], frozenset(shown), is_alert=True)


def _of_panel(name, panel, target):
    shown = re.findall(r"{{(\w+)}}", target.get("legendFormat", ""))
    # As Grafana does with all values selected, and a step of some seconds.
    expression = re.sub(r"\$__rate_interval", "1m", target["expr"])
    expression = re.sub(r"\$[a-z]\w+", ".+", expression)
    return Query(f"{name}, {panel['title']!r}", expression, frozenset(shown))


def check_by_promtool(report, telemetry):
    """Runs promtool on the files of Prometheus, and the unit tests."""
    _promtool(report, telemetry, "check", "config", "prometheus.yaml")
    _promtool(report, telemetry, "check", "rules", "alerts.yaml")
    _promtool(report, telemetry, "test", "rules", *ALERT_TESTS)


def check(report, telemetry):
    """Runs the checks that promtool lacks."""
    with report.at("alerts.yaml"):
        _check_alerts(report, telemetry)
    _check_tests(report, telemetry)
    _check_kubernetes(report, telemetry)
    for what, values in (
        ("uid", [board["uid"] for board in telemetry.dashboards.values()]),
        ("title", [board["title"] for board in telemetry.dashboards.values()]),
    ):
        report.unless(len(set(values)) == len(values), f"dashboards: a {what} is duplicated")
    for name, board in telemetry.dashboards.items():
        with report.at(name):
            _check_dashboard(report, board)


def _promtool(report, telemetry, *arguments):
    result = subprocess.run(
        ["promtool", *arguments],
        cwd=telemetry.directory, capture_output=True, text=True, timeout=PROMTOOL_S,
    )
    if result.returncode:
        output = f"{result.stdout.strip()} {result.stderr.strip()}"
        report.wrong(f"promtool {' '.join(arguments)}: {output}")


def _check_alerts(report, telemetry):
    names = Counter(alert["alert"] for alert in telemetry.alerts)
    report.same("duplicated alerts", {name for name in names if names[name] > 1}, set())
    headings = Counter(re.findall(r"^## (\w+)$", telemetry.runbooks, flags=re.MULTILINE))
    report.same("alerts in README.md", set(headings.elements()), set(names))
    for alert in telemetry.alerts:
        with report.at(alert["alert"]):
            report.same("annotations", set(alert["annotations"]), ANNOTATIONS)
            report.same("runbook", alert["annotations"].get("runbook"),
                        RUNBOOKS + alert["alert"].lower())
            report.unless(alert["labels"].get("severity") in SEVERITIES, "has no severity")
            report.unless("for" in alert, "has no `for`")


def _check_tests(report, telemetry):
    """Each alert needs a test in which it fires, and one in which it does not."""
    seen = set()
    for test in telemetry.tests:
        for case in test["promql_expr_test"]:
            name = re.search(r'alertname="(\w+)"', case["expr"])[1]
            seen.add((name, "fires" if case["exp_samples"] else "does not fire"))
    wanted = {(alert["alert"], how) for alert in telemetry.alerts
              for how in ("fires", "does not fire")}
    report.same("tests of alerts", seen, wanted)


def _check_kubernetes(report, telemetry):
    """Compares the settings that the alerts rely on: Debian's Prometheus lacks Kubernetes
    support."""
    local, cluster = telemetry.read("prometheus.yaml"), telemetry.read("kubernetes.yaml")
    for key in ("global", "rule_files"):
        report.same(f"kubernetes.yaml, {key}", cluster[key], local[key])
    names = [[one["job_name"] for one in file["scrape_configs"]] for file in (cluster, local)]
    report.same("kubernetes.yaml, jobs", *names)


def _check_dashboard(report, board):
    ids = [panel["id"] for panel in board["panels"]]
    report.unless(len(set(ids)) == len(ids), "an id of a panel is duplicated")
    titles = [panel["title"] for panel in board["panels"]]
    report.unless(len(set(titles)) == len(titles), "a title of a panel is duplicated")
    variables = {variable["name"] for variable in board["templating"]["list"]}
    taken = set()
    for panel in board["panels"]:
        with report.at(repr(panel["title"])):
            report.same("datasource", panel["datasource"]["uid"], "${datasource}")
            refs = [target["refId"] for target in panel["targets"]]
            report.unless(len(set(refs)) == len(refs), "a refId is duplicated")
            used = {name for target in panel["targets"]
                    for name in re.findall(r"\$([a-z_]\w+)", target["expr"])}
            unknown = used - variables - {"__rate_interval"}
            report.unless(not unknown, f"undefined variable {', '.join(sorted(unknown))}")
            place = panel["gridPos"]
            cells = {(x, y) for x in range(place["x"], place["x"] + place["w"])
                     for y in range(place["y"], place["y"] + place["h"])}
            report.unless(not cells & taken, "overlaps another one")
            report.unless(max(x for x, _ in cells) < COLUMNS, "is wider than the grid")
            taken |= cells
