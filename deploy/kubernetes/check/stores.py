"""The stores of the servers on 127.0.0.1: Redis with the command of its container, and
PostgreSQL with the environment and the initialization of its container."""

import glob
import os
import pwd
import re
import shutil
import subprocess
from contextlib import contextmanager
from pathlib import Path

from processes import end_of, eventually, free_port, running


# Whose SQL files the image of PostgreSQL runs at the first start.
INITIALIZATION = "/docker-entrypoint-initdb.d"


class Failed(Exception):
    """A store failed to start."""


def laid_out(container, directory, port, declared_port):
    """Writes the mounted files of a container below a directory. Returns its command and the
    commands of its probes with paths and port replaced."""
    places = {}
    for number, (path, files) in enumerate(sorted(container.mounts.items())):
        place = directory / f"mount-{number}"
        place.mkdir()
        places[path] = str(place)
        for name, text in (files or {}).items():
            (place / name).write_text(text)

    def replace(word):
        for path, place in sorted(places.items(), reverse=True):
            # Also in a command of a shell.
            word = re.sub(rf"(?<!\S){re.escape(path)}(?=/|$)", place, word)
        return re.sub(rf"\b{declared_port}\b", str(port), word)

    probes = {
        name: [replace(word) for word in probe["exec"]["command"]]
        for name, probe in container.probes.items() if "exec" in probe
    }
    return [replace(word) for word in container.command], probes


@contextmanager
def redis(container, directory, port, is_cluster):
    """Runs a redis-server with the command of a container, optionally as the only node of a
    cluster."""
    directory.mkdir()
    command, probes = laid_out(container, directory, port, 6379)
    command += ["--bind", "127.0.0.1"]
    if is_cluster:
        command += ["--cluster-enabled", "yes", "--cluster-announce-ip", "127.0.0.1"]
        command += ["--cluster-port", str(free_port())]
    # The directory of the passwords is an argument of deploy/redis/start.
    password = (container.file(f"{container.command[2]}/admin") or "").strip()
    environment = os.environ | container.environment
    with running(command, directory, env=environment) as process:
        def is_ready():
            if process.poll() is not None:
                raise Failed(f"redis ended:{end_of(process.log)}")
            probe = probes["readinessProbe"]
            return subprocess.run(probe, env=environment, capture_output=True).returncode == 0

        if not eventually(is_ready):
            raise Failed(f"redis is never ready:{end_of(process.log)}")
        if is_cluster:
            redis_cli = ["redis-cli", "-p", str(port), "--user", "admin", "--raw", "cluster"]
            def cluster(*words):
                return subprocess.run(
                    [*redis_cli, *words], env=environment | {"REDISCLI_AUTH": password},
                    capture_output=True, text=True,
                ).stdout
            cluster("addslotsrange", "0", "16383")
            if not eventually(lambda: "cluster_state:ok" in cluster("info")):
                raise Failed(f"redis cluster is not ready:{end_of(process.log)}")
        yield


class Database:
    """A PostgreSQL server with a superuser, a database and the results of SQL files, as its image
    creates them at the first start."""

    def __init__(self, container, directory, port):
        self.container, self.directory, self.port = container, directory, port
        self.password = container.file(container.environment["POSTGRES_PASSWORD_FILE"]).strip()
        self.database = container.environment["POSTGRES_DB"]
        self.programs = _postgresql()
        # PostgreSQL does not run as root.
        self.account = {}
        directory.mkdir()
        if os.geteuid() == 0:
            try:
                postgres = pwd.getpwnam("postgres")
            except KeyError as missing:
                raise Failed("no account for PostgreSQL: `postgres` does not exist") from missing
            self.account = {"user": postgres.pw_uid, "group": postgres.pw_gid}
            os.chown(directory, postgres.pw_uid, postgres.pw_gid)
            directory.parent.chmod(0o711)

    @contextmanager
    def running(self):
        password_file = self.directory / "password"
        password_file.write_text(self.password)
        if self.account:
            os.chown(password_file, self.account["user"], self.account["group"])
        data = self.directory / "data"
        made = subprocess.run(
            [self.programs / "initdb", "--pgdata", data, "--username", "postgres", "--pwfile",
             password_file, "--auth=scram-sha-256", "--no-sync", "--locale=C",
             "--encoding=UTF8"],
            cwd=self.directory, capture_output=True, text=True, **self.account,
        )
        if made.returncode != 0:
            raise Failed(f"initdb: {made.stderr}")
        settings = {
            # No Unix sockets: paths of temporary directories may be too long for them.
            "listen_addresses": "127.0.0.1", "unix_socket_directories": "",
            "fsync": "off", "shared_buffers": "16MB", "dynamic_shared_memory_type": "mmap",
        }
        command = [self.programs / "postgres", "-D", data, "-p", str(self.port)]
        command += [word for item in settings.items() for word in ("-c", "=".join(map(str, item)))]
        with running(command, self.directory, **self.account) as process:
            def is_ready():
                if process.poll() is not None:
                    raise Failed(f"PostgreSQL ended:{end_of(process.log)}")
                return self._query("postgres", "select 1") == "1"

            if not eventually(is_ready):
                raise Failed(f"PostgreSQL is never ready:{end_of(process.log)}")
            def is_created():
                self._query("postgres", f'create database "{self.database}"')
                return self.query("select 1") == "1"

            # Fails while another session is connected to the template database.
            if not eventually(is_created):
                raise Failed(f"cannot create a database:{end_of(process.log)}")
            self._initialize()
            yield

    def _initialize(self):
        passwords = self.container.environment["DATABASE_PASSWORDS"]
        here = self.directory / "passwords"
        here.mkdir()
        for name, text in self.container.mounts[passwords].items():
            (here / name).write_text(text)
        for name, text in sorted((self.container.mounts.get(INITIALIZATION) or {}).items()):
            file = self.directory / name
            file.write_text(text)
            done = self._psql(
                self.database, "--set", "ON_ERROR_STOP=1", "--file", file,
                environment={"DATABASE_PASSWORDS": str(here)},
            )
            if done.returncode != 0:
                raise Failed(f"{name}: {done.stderr}")

    def query(self, statement):
        """Runs a statement as the superuser, and returns its output."""
        return self._query(self.database, statement)

    def _query(self, database, statement):
        return self._psql(database, "--command", statement).stdout.strip()

    def _psql(self, database, *arguments, environment=()):
        return subprocess.run(
            [self.programs / "psql", "--no-psqlrc", "--host", "127.0.0.1", "--port",
             str(self.port), "--username", "postgres", "--dbname", database, "--tuples-only",
             "--no-align", "--no-password", *arguments],
            env=os.environ | {"PGPASSWORD": self.password} | dict(environment),
            capture_output=True, text=True,
        )


def _postgresql():
    """The directory of PostgreSQL's programs: on the PATH, or Debian's newest."""
    def version(path):
        return float(Path(path).parts[-2])

    debian = sorted(glob.glob("/usr/lib/postgresql/*/bin"), key=version, reverse=True)
    on_path = shutil.which("initdb")
    for directory in [*([Path(on_path).parent] if on_path else []), *map(Path, debian)]:
        if all((directory / name).is_file() for name in ("initdb", "postgres", "psql")):
            return directory
    raise Failed("PostgreSQL not found: run deploy/install-postgresql")
