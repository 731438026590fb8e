"""The Redis Cluster and the PostgreSQL that an overlay expects outside of it, as containers with
the names and the passwords of its stores."""

from pathlib import Path

from containers import hosts
from podman import Failed
from processes import eventually

DEPLOY = Path(__file__).resolve().parents[2]
REDIS = "docker.io/library/redis:7.2-bookworm"
POSTGRESQL = "docker.io/library/postgres:17-bookworm"
ADMIN = "local-admin"


def without_tls(environment):
    """The environment of a server, with the stores of the check, which have no certificates."""
    return {
        name: value.replace("sslmode=require", "sslmode=disable")
        for name, value in environment.items()
    }


def start(podman, network, servers, directory):
    """Starts both, with their passwords in files of the directory, and returns what they are."""
    for store, run in ("REDIS", _redis), ("DATABASE", _postgresql):
        logins = [login for server in servers for login in server.logins(store)]
        names = {name for url, _ in logins for name, _ in hosts(url.geturl())}
        passwords = directory / f"passwords-{store.lower()}"
        passwords.mkdir()
        (passwords / "admin").write_text(ADMIN)
        for url, password in logins:
            (passwords / url.username).write_text(password)
        run(podman, network, names, passwords)
    return "a Redis Cluster of one node and a PostgreSQL without TLS"


def _run(podman, network, names, name, variables, *words):
    podman.podman(
        "run", "--detach", "--name", name, "--user", "999:999", "--cap-drop", "all",
        "--network", f"{network}:{','.join(f'alias={one}' for one in sorted(names))}",
        *(word for key, value in variables.items() for word in ("--env", f"{key}={value}")), *words,
    )


def _redis(podman, network, names, passwords):
    _run(
        podman, network, names, "redis-outside", {"REDISCLI_AUTH": ADMIN},
        "--volume", f"{DEPLOY}/redis:/etc/redis:ro", "--volume", f"{passwords}:/run/secrets/redis:ro",
        REDIS, "sh", "/etc/redis/start", "/run/secrets/redis", "/tmp/users.acl",
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
    _run(
        podman, network, names, "postgresql-outside",
        {
            "POSTGRES_PASSWORD_FILE": "/run/secrets/database/admin", "POSTGRES_DB": "microblog",
            "DATABASE_PASSWORDS": "/run/secrets/database",
        },
        "--volume", f"{DEPLOY}/postgresql/roles.sql:/docker-entrypoint-initdb.d/roles.sql:ro",
        "--volume", f"{passwords}:/run/secrets/database:ro",
        POSTGRESQL,
    )
