"""The Redis Cluster and the PostgreSQL that an overlay expects outside of it, as containers with
the names and the passwords of its stores."""

import re
from pathlib import Path
from urllib.parse import unquote, urlsplit

from containers import hosts
from podman import Failed
from processes import eventually

DEPLOY = Path(__file__).resolve().parents[2]
REDIS = "docker.io/library/redis:7.2-bookworm"
POSTGRESQL = "docker.io/library/postgres:17-bookworm"
ADMIN = "local-admin"
STORE = re.compile(r"MICROBLOG_(?:\w+_)?(REDIS|DATABASE)_URL")


def without_tls(environment):
    """The environment of a server, with the stores of the check, which have no certificates."""
    return {
        name: value.replace("sslmode=require", "sslmode=disable")
        for name, value in environment.items()
    }


def start(podman, network, servers):
    """Starts both, and returns what they are."""
    passwords, names = {"REDIS": {}, "DATABASE": {}}, {"REDIS": set(), "DATABASE": set()}
    for server in servers:
        for variable, value in server.environment.items():
            if found := STORE.fullmatch(variable):
                parts = urlsplit(value)
                passwords[found[1]][parts.username] = unquote(parts.password)
                names[found[1]].update(name for name, _ in hosts(value))
    _redis(podman, network, names["REDIS"], passwords["REDIS"])
    _postgresql(podman, network, names["DATABASE"], passwords["DATABASE"])
    return "a Redis Cluster of one node and a PostgreSQL without TLS"


def _run(podman, network, names, name, variables, *words):
    podman.podman(
        "run", "--detach", "--name", name, "--user", "999:999", "--cap-drop", "all",
        "--network", f"{network}:{','.join(f'alias={one}' for one in sorted(names))}",
        *(word for key, value in variables.items() for word in ("--env", f"{key}={value}")), *words,
    )


def _redis(podman, network, names, passwords):
    passwords |= {"admin": ADMIN}
    variables = {f"REDIS_{user.upper()}_PASSWORD": text for user, text in passwords.items()}
    _run(
        podman, network, names, "redis-outside", variables | {"REDISCLI_AUTH": ADMIN},
        "--volume", f"{DEPLOY}/redis:/etc/redis:ro", REDIS,
        "sh", "/etc/redis/start", "environment", "/tmp/users.acl",
        "--dir", "/data", "--port", "6379", "--cluster-enabled", "yes",
    )
    address = podman.address("redis-outside")
    def cluster(*words):
        return podman.podman("exec", "redis-outside", "redis-cli", "--user", "admin", *words)

    eventually(lambda: _answers(cluster, "ping"))
    cluster("config", "set", "cluster-announce-ip", address)
    cluster("cluster", "addslotsrange", "0", "16383")


def _answers(cluster, *words):
    try:
        return "PONG" in cluster(*words)
    except Failed:
        return False


def _postgresql(podman, network, names, passwords):
    variables = {
        f"DATABASE_{role.upper()}_PASSWORD": text for role, text in passwords.items()
    }
    _run(
        podman, network, names, "postgresql-outside",
        variables | {"POSTGRES_PASSWORD": ADMIN, "POSTGRES_DB": "microblog"},
        "--volume", f"{DEPLOY}/postgresql/roles.sql:/docker-entrypoint-initdb.d/roles.sql:ro",
        POSTGRESQL,
    )
