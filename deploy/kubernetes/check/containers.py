"""A container of Kubernetes or Compose: command, environment, files, probes. The checks that
both share are in `settings.py`."""

import re
from dataclasses import dataclass, field
from urllib.parse import urlsplit

# Default ports by scheme.
PORTS = {"postgres": 5432, "redis": 6379, "redis-cluster": 6379, "rediss-cluster": 6379}


@dataclass
class Container:
    """The properties of a container."""

    name: str
    """Its host name for other containers."""
    image: str
    command: list[str]
    """The program and its arguments; empty if the image defines them."""
    environment: dict[str, str]
    helpers: set[str] = field(default_factory=set)
    """Environment variables that exist only to build others."""
    mounts: dict[str, dict[str, str] | None] = field(default_factory=dict)
    """Directories with their files and contents, or None for an empty, writable one."""
    ports: set[int] = field(default_factory=set)
    probes: dict[str, dict] = field(default_factory=dict)
    grace_s: float = 30
    tls_files: dict[str, str] | None = None
    """If it has TLS: its certificate, its key, and the CA certificate for its callers."""

    @property
    def program(self):
        return self.command[0] if self.command else None

    @property
    def has_tls(self):
        """Whether it accepts only TLS."""
        return "MICROBLOG_TLS_CERT_FILE" in self.environment

    @property
    def has_keys(self):
        """Whether it signs and verifies caller identities."""
        return "MICROBLOG_IDENTITY_KEY_FILE" in self.environment

    def file(self, path):
        """The text of a mounted file, or None."""
        directory, _, name = path.rpartition("/")
        return (self.mounts.get(directory) or {}).get(name)

    def logins(self, store):
        """Its addresses of a store, REDIS or DATABASE, each with the password in the file beside
        it."""
        for variable, address in self.environment.items():
            if re.fullmatch(rf"MICROBLOG_(\w+_)?{store}_URL", variable):
                file = variable.removesuffix("URL") + "PASSWORD_FILE"
                password = self.file(self.environment.get(file, ""))
                yield urlsplit(address), (password or "").rstrip("\n")

    def secrets(self):
        """The environment variables that have a password, in an address or by their name."""
        for variable, value in self.environment.items():
            is_named = variable.endswith(("PASSWORD", "REDISCLI_AUTH"))
            if is_named or "://" in value and urlsplit(value).password:
                yield variable

    def addresses(self, program):
        """Its peers and stores: (variable, callee, host, port) for each host of each address."""
        for variable, callee in program.callees.items():
            value = self.environment.get(variable)
            for host, port in hosts(value) if value else ():
                yield variable, callee, host, port


def hosts(address):
    """The hosts and ports of an address, which may have several."""
    parts = urlsplit(address)
    authority = parts.netloc.rpartition("@")[2]
    for host in authority.split(","):
        name, _, port = host.partition(":")
        yield name, int(port) if port else PORTS.get(parts.scheme, 80)
