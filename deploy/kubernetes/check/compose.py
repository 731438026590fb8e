"""The Compose file: its services as containers with their environment, and checks that they
match the programs and the files."""

import re

import yaml

from containers import Container
from settings import check as check_settings

DURATION = re.compile(r"(?:(\d+)m)?(?:(\d+)s)?")


class Compose:
    """A Compose file, read with the defaults of its variables."""

    def __init__(self, file):
        self.directory = file.parent
        self.data = yaml.safe_load(_interpolate(file.read_text()))
        self.containers = [
            self._container(name, spec) for name, spec in self.data["services"].items()
        ]

    def _container(self, name, spec):
        minutes, seconds = DURATION.fullmatch(spec.get("stop_grace_period", "10s")).groups()
        return Container(
            name=name,
            image=spec["image"],
            command=[*spec.get("entrypoint", ()), *spec.get("command", ())],
            environment={key: str(value) for key, value in spec.get("environment", {}).items()},
            mounts=self._mounts(spec),
            grace_s=int(minutes or 0) * 60 + int(seconds or 0),
        )

    def _mounts(self, spec):
        mounts = {}
        for volume in spec.get("volumes", ()):
            source, target = volume.split(":")[:2]
            path = self.directory / source
            if source in self.data.get("volumes", ()):
                mounts[target] = None
            elif path.is_dir():
                files = (file for file in path.iterdir() if file.is_file())
                mounts[target] = {file.name: file.read_text() for file in files}
            elif path.is_file():
                parent, _, base = target.rpartition("/")
                mounts.setdefault(parent, {})[base] = path.read_text()
        for directory in spec.get("tmpfs", ()):
            mounts[directory.partition(":")[0]] = None
        return mounts


def _interpolate(text):
    return re.sub(r"\$\{(\w+):-([^}]*)\}", r"\2", text)


def check(report, compose, programs):
    names = {container.name for container in compose.containers}
    report.same("servers", names & programs.servers.keys(), set(programs.alone))
    for container in compose.containers:
        spec = compose.data["services"][container.name]
        with report.at(container.name):
            _check_mounts(report, compose, spec)
            tag = container.image.rpartition("/")[2].partition(":")[2]
            report.unless(tag and tag != "latest", "its image has no version")
            report.same("cap_drop", spec.get("cap_drop"), ["ALL"])
            for port in spec.get("ports", ()):
                report.unless(port.startswith("127.0.0.1:"), f"is open to the network: {port}")
            if program := programs.servers.get(container.name):
                check_settings(report, container, programs)
                for variable, _, host, port in container.addresses(program):
                    report.unless(host in names, f"{variable}: no such service: {host}")
                    if host in programs.alone:
                        ports = programs.alone[host].ports
                        report.same(f"{variable}: the port", port, ports[host])


def _check_mounts(report, compose, spec):
    for volume in spec.get("volumes", ()):
        source = volume.partition(":")[0]
        known = source in compose.data.get("volumes", ()) or (compose.directory / source).exists()
        report.unless(known, f"no such volume, directory or file: {source}")
