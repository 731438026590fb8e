"""A Prometheus of the check's own, which scrapes and evaluates every second, and what can be asked
of it."""

import json
import re
import urllib.error
import urllib.parse
import urllib.request
from contextlib import contextmanager

import yaml

import processes


class Prometheus:
    """One that runs on a port of 127.0.0.1."""

    def __init__(self, port):
        self._url = f"http://127.0.0.1:{port}"

    def is_ready(self):
        try:
            with urllib.request.urlopen(f"{self._url}/-/ready", timeout=processes.PATIENCE_S):
                return True
        except OSError:
            return False

    def _get(self, path, **parameters):
        url = f"{self._url}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
        try:
            with urllib.request.urlopen(url, timeout=processes.PATIENCE_S) as answer:
                return json.load(answer)["data"]
        except urllib.error.HTTPError as refusal:
            raise ValueError(json.load(refusal).get("error", str(refusal))) from None

    def query(self, expression):
        """What a query answers now. ValueError says why it cannot."""
        return self._get("query", query=expression)["result"]

    def series(self, selector):
        """The labels of all series that there ever were."""
        return self._get("series", **{"match[]": selector})

    def targets(self):
        """Whether each target was scraped well the last time, by its address."""
        active = self._get("targets", state="active")["activeTargets"]
        return {target["labels"]["instance"]: target["health"] == "up" for target in active}

    def alerts(self):
        """What is known of each alert: state, health, and what is active of it."""
        groups = self._get("rules", type="alert")["groups"]
        return {rule["name"]: rule for group in groups for rule in group["rules"]}


@contextmanager
def running(telemetry, targets, directory):
    """Runs one for as long as a block, once it has scraped all targets."""
    own = directory / "prometheus"
    own.mkdir()
    (own / "prometheus.yaml").write_text(_config(telemetry, targets))
    # So that what would wake somebody in minutes does so at once.
    rules = (telemetry.directory / "alerts.yaml").read_text()
    (own / "alerts.yaml").write_text(re.sub(r"(?m)^( +for:) .*", r"\1 0s", rules))
    port = processes.free_port()
    command = [
        "prometheus", "--config.file=prometheus.yaml", "--storage.tsdb.path=data",
        f"--web.listen-address=127.0.0.1:{port}", "--log.level=warn",
    ]
    with processes.running(command, own) as process:
        prometheus = Prometheus(port)
        up = dict.fromkeys(targets, True)
        if not processes.eventually(lambda: prometheus.is_ready() and prometheus.targets() == up):
            raise SystemExit(f"Prometheus does not scrape:{processes.end_of(process.log)}")
        yield prometheus


def _config(telemetry, targets):
    """prometheus.yaml, but for the targets and the pace."""
    config = telemetry.read("prometheus.yaml")
    config["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
    (job,) = config["scrape_configs"]
    job["static_configs"] = [{"targets": targets}]
    return yaml.safe_dump(config)
