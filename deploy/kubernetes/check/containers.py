"""A container, as Kubernetes or Compose would start it: command, environment, files, probes. What
is the same for both is said of it here and in `settings.py`."""

from dataclasses import dataclass, field
from urllib.parse import urlsplit

# Of addresses that name none.
PORTS = {"postgres": 5432, "redis": 6379, "redis-cluster": 6379, "rediss-cluster": 6379}


@dataclass
class Container:
    """What is started, and what is known of it."""

    name: str
    """What others call it."""
    image: str
    command: list[str]
    """The program and its arguments; none where the image says so."""
    environment: dict[str, str]
    helpers: set[str] = field(default_factory=set)
    """Variables of the environment that are only there to make up others."""
    mounts: dict[str, dict[str, str] | None] = field(default_factory=dict)
    """Directories: their files and texts, or None for one that is empty and can be written to."""
    ports: set[int] = field(default_factory=set)
    probes: dict[str, dict] = field(default_factory=dict)
    grace_s: float = 30

    @property
    def program(self):
        return self.command[0] if self.command else None

    @property
    def has_tls(self):
        """Whether it speaks nothing but TLS with its callers."""
        return "MICROBLOG_TLS_CERT_FILE" in self.environment

    def addresses(self, program):
        """Whom it is told to call: (variable, callee, host, port) for each host of each address."""
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
