"""Checks that the telemetry collector's configuration is consistent, and matches its container. Its
ports are taken from the addresses in the configuration, because the collector is no program of the
workspace."""

import yaml

from overlay import containers

PARTS = "receivers", "processors", "exporters"


def check(report, overlay):
    for container in containers(overlay):
        for files in container.mounts.values():
            if container.name == "collector" and files:
                with report.at("the collector's configuration"):
                    _check(report, yaml.safe_load(files["config.yaml"]), container.ports)


def _check(report, config, ports):
    listening = [part for name in ("extensions", *PARTS) for part in _endpoints(config[name])]
    report.same("ports", ports, {int(one.rpartition(":")[2]) for one in listening})
    for one in listening:
        report.unless(one.startswith("0.0.0.0:"), f"{one} cannot be reached by others")
    service = config["service"]
    report.same("extensions", set(service["extensions"]), set(config["extensions"]))
    for part in PARTS:
        used = {one for pipeline in service["pipelines"].values() for one in pipeline[part]}
        report.same(f"{part} of pipelines", used, set(config[part]))


def _endpoints(config):
    """All values named `endpoint`, at any depth."""
    for name, value in (config or {}).items():
        if name == "endpoint":
            yield value
        elif isinstance(value, dict):
            yield from _endpoints(value)
