"""The Prometheus of the check, which scrapes and evaluates every second, and a client of its
API."""

import json
import re
import urllib.error
import urllib.parse
import urllib.request
from contextlib import contextmanager

import yaml

import processes


class Prometheus:
    """A client of a Prometheus on a port of 127.0.0.1."""

    def __init__(self, port):
        self._url = f"http://127.0.0.1:{port}"

    def is_ready(self):
        try:
            with urllib.request.urlopen(f"{self._url}/-/ready", timeout=processes.TIMEOUT_S):
                return True
        except OSError:
            return False

    def _get(self, path, **parameters):
        url = f"{self._url}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
        try:
            with urllib.request.urlopen(url, timeout=processes.TIMEOUT_S) as answer:
                return json.load(answer)["data"]
        except urllib.error.HTTPError as error:
            raise ValueError(json.load(error).get("error", str(error))) from None

    def query(self, expression):
        """The current result of a query. Raises ValueError if it is invalid."""
        return self._get("query", query=expression)["result"]

    def series(self, selector):
        """The labels of all series, including old ones."""
        return self._get("series", **{"match[]": selector})

    def targets(self):
        """Whether the last scrape of each target succeeded, by address."""
        active = self._get("targets", state="active")["activeTargets"]
        return {target["labels"]["instance"]: target["health"] == "up" for target in active}

    def alerts(self):
        """The state, health and active instances of each alert."""
        groups = self._get("rules", type="alert")["groups"]
        return {rule["name"]: rule for group in groups for rule in group["rules"]}


@contextmanager
def running(telemetry, targets, directory):
    """Runs a Prometheus for the duration of a block, once it has scraped all targets."""
    own = directory / "prometheus"
    own.mkdir()
    (own / "prometheus.yaml").write_text(_config(telemetry, targets))
    # Alerts become active at once instead of after minutes.
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
        scrapes = lambda: prometheus.is_ready() and prometheus.targets() == up
        processes.until_ready(process, "Prometheus", scrapes)
        yield prometheus


def _config(telemetry, targets):
    """prometheus.yaml with other targets and intervals."""
    config = telemetry.read("prometheus.yaml")
    config["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
    (job,) = config["scrape_configs"]
    job["static_configs"] = [{"targets": targets}]
    return yaml.safe_dump(config)
