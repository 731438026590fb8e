"""The Compose files: their services as containers with their environment, and checks that they
match the programs and the files."""

import os
import re
import subprocess
from contextlib import contextmanager
from tempfile import TemporaryDirectory

import yaml

from containers import Container
from settings import check as check_settings
from settings import check_schemes, check_secrets

PLAIN = ("compose.yaml",)
WITH_TLS = (*PLAIN, "compose.tls.yaml")

DURATION = re.compile(r"(?:(\d+)m)?(?:(\d+)s)?")


@contextmanager
def keys(deploy):
    """Yields the variables of WITH_TLS for the duration of a block, with files made by the commands in
    the comment of compose.tls.yaml."""
    before, _, _ = (deploy / WITH_TLS[-1]).read_text().partition("#   docker compose")
    commands = "\n".join(re.findall(r"^#   (.*)", before, flags=re.MULTILINE))
    with TemporaryDirectory(prefix="microblog-tls-") as home:
        made = subprocess.run(
            ["sh", "-ec", f'{commands}\nprintf %s "$MICROBLOG_TLS_DIR"'],
            cwd=home, env=os.environ | {"HOME": home}, capture_output=True, text=True,
        )
        if made.returncode != 0:
            raise SystemExit(f"the commands of {WITH_TLS[-1]}:\n{made.stderr}")
        yield {"MICROBLOG_TLS_DIR": made.stdout}


class Compose:
    """Compose files, merged, with these values or the defaults of their variables."""

    def __init__(self, deploy, names=PLAIN, variables=()):
        self.name = " with ".join(names)
        self.directory = deploy
        self.files = [deploy / name for name in names]
        self.variables = dict(variables)
        self.data = {}
        for file in self.files:
            text = _interpolate(file.read_text(), self.variables)
            self.data = _merged(self.data, yaml.safe_load(text))
        self.containers = [
            self._container(name, spec) for name, spec in self.data["services"].items()
        ]

    def named(self, name):
        """The container of a service."""
        return next(one for one in self.containers if one.name == name)

    def secret_file(self, name):
        """The file of a secret, which need not exist, or None."""
        secret = self.data.get("secrets", {}).get(name)
        return secret and self.directory / secret["file"]

    def _container(self, name, spec):
        minutes, seconds = DURATION.fullmatch(spec.get("stop_grace_period", "10s")).groups()
        environment = {key: str(value) for key, value in spec.get("environment", {}).items()}
        mounts = self._mounts(spec)
        certificate = environment.get("MICROBLOG_TLS_CERT_FILE", "")
        return Container(
            name=name,
            image=spec["image"],
            command=[*spec.get("entrypoint", ()), *spec.get("command", ())],
            environment=environment,
            mounts=mounts,
            grace_s=int(minutes or 0) * 60 + int(seconds or 0),
            tls_files=mounts.get(certificate.rpartition("/")[0]),
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
        for secret, target in _secrets(spec):
            path = self.secret_file(secret)
            if path and path.is_file():
                parent, _, base = target.rpartition("/")
                mounts.setdefault(parent, {})[base] = path.read_text()
        for directory in spec.get("tmpfs", ()):
            mounts[directory.partition(":")[0]] = None
        return mounts


def _secrets(spec):
    """The secrets of a service, with the paths at which it finds them."""
    for secret in spec.get("secrets", ()):
        if isinstance(secret, str):
            yield secret, f"/run/secrets/{secret}"
        else:
            yield secret["source"], secret["target"]


def _interpolate(text, variables):
    """Replaces ${NAME:-default} and ${NAME:?error}."""
    return re.sub(
        r"\$\{(\w+):(?:-([^}]*)|\?[^}]*)\}",
        lambda found: variables.get(found[1], found[2] or ""), text,
    )


def _merged(one, other):
    """Merges mappings and appends lists, as Compose does. It replaces commands, but none is in two of
    the files."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one | {key: _merged(one.get(key), value) for key, value in other.items()}
    if isinstance(one, list) and isinstance(other, list):
        return one + other
    return other


def check(report, compose, programs):
    names = {container.name for container in compose.containers}
    report.same("servers", names & programs.servers.keys(), set(programs.alone))
    keyed = {one.name for one in compose.containers if one.has_keys}
    report.same("servers with keys", keyed, set(programs.alone) if keyed else set())
    for container in compose.containers:
        spec = compose.data["services"][container.name]
        with report.at(container.name):
            _check_mounts(report, compose, spec)
            check_secrets(report, container)
            tag = container.image.rpartition("/")[2].partition(":")[2]
            report.unless(tag and tag != "latest", "its image has no version")
            report.same("cap_drop", spec.get("cap_drop"), ["ALL"])
            for port in spec.get("ports", ()):
                report.unless(port.startswith("127.0.0.1:"), f"is open to the network: {port}")
            if program := programs.servers.get(container.name):
                check_settings(report, container, programs)
                check_schemes(report, container, program, compose.containers)
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
    for secret, _ in _secrets(spec):
        path = compose.secret_file(secret)
        report.unless(path and path.is_file(), f"the secret {secret} has no file")
