"""The stores that servers need, on 127.0.0.1: Redis, started as its container says, and PostgreSQL,
with what its container is told to make."""

import glob
import os
import pwd
import re
import shutil
import subprocess
from contextlib import contextmanager
from pathlib import Path

from processes import end_of, eventually, free_port, running


class Failed(Exception):
    """Something did not start."""


def laid_out(container, directory, port, declared_port):
    """Makes what a container finds in its file system, below a directory, and returns its command
    and its probes' commands with the paths, and the port, put in."""
    places = {}
    for number, (path, files) in enumerate(sorted(container.mounts.items())):
        place = directory / f"mount-{number}"
        place.mkdir()
        places[path] = str(place)
        for name, text in (files or {}).items():
            (place / name).write_text(text)

    def put_in(word):
        for path, place in sorted(places.items(), reverse=True):
            word = re.sub(rf"^{re.escape(path)}(?=/|$)", place, word)
        return re.sub(rf"\b{declared_port}\b", str(port), word)

    probes = {
        name: [put_in(word) for word in probe["exec"]["command"]]
        for name, probe in container.probes.items() if "exec" in probe
    }
    return [put_in(word) for word in container.command], probes


@contextmanager
def redis(container, directory, port, is_cluster):
    """Runs a redis-server as a container says, or as the only node of a cluster."""
    directory.mkdir()
    command, probes = laid_out(container, directory, port, 6379)
    command += ["--bind", "127.0.0.1"]
    if is_cluster:
        command += ["--cluster-enabled", "yes", "--cluster-announce-ip", "127.0.0.1"]
        command += ["--cluster-port", str(free_port())]
    environment = os.environ | container.environment
    with running(command, directory, env=environment) as process:
        def answers():
            if process.poll() is not None:
                raise Failed(f"redis ended:{end_of(process.log)}")
            probe = probes["readinessProbe"]
            return subprocess.run(probe, env=environment, capture_output=True).returncode == 0

        if not eventually(answers):
            raise Failed(f"redis is never ready:{end_of(process.log)}")
        if is_cluster:
            ask = ["redis-cli", "-p", str(port), "--user", "admin", "--raw", "cluster"]
            def say(*words):
                return subprocess.run(
                    [*ask, *words], env=environment, capture_output=True, text=True
                ).stdout
            say("addslotsrange", "0", "16383")
            if not eventually(lambda: "cluster_state:ok" in say("info")):
                raise Failed(f"redis makes no cluster:{end_of(process.log)}")
        yield


class Archive:
    """A PostgreSQL with a user and a database, as its image makes them at its first start."""

    def __init__(self, directory, port, user, password, database):
        self.directory, self.port = directory, port
        self.user, self.password, self.database = user, password, database
        self.programs = _postgresql()
        # It refuses to run as root.
        self.account = {}
        directory.mkdir()
        if os.geteuid() == 0:
            try:
                postgres = pwd.getpwnam("postgres")
            except KeyError as missing:
                raise Failed("PostgreSQL runs as nobody here: there is no `postgres`") from missing
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
            [self.programs / "initdb", "--pgdata", data, "--username", self.user, "--pwfile",
             password_file, "--auth=scram-sha-256", "--no-sync", "--locale=C",
             "--encoding=UTF8"],
            cwd=self.directory, capture_output=True, text=True, **self.account,
        )
        if made.returncode != 0:
            raise Failed(f"initdb: {made.stderr}")
        settings = {
            # No sockets: paths of temporary directories may be longer than those may have.
            "listen_addresses": "127.0.0.1", "unix_socket_directories": "",
            "fsync": "off", "shared_buffers": "16MB", "dynamic_shared_memory_type": "mmap",
        }
        command = [self.programs / "postgres", "-D", data, "-p", str(self.port)]
        command += [word for item in settings.items() for word in ("-c", "=".join(map(str, item)))]
        with running(command, self.directory, **self.account) as process:
            def answers():
                if process.poll() is not None:
                    raise Failed(f"PostgreSQL ended:{end_of(process.log)}")
                return self.ask("select 1", "postgres") == "1"

            if not eventually(answers):
                raise Failed(f"PostgreSQL is never ready:{end_of(process.log)}")
            def is_made():
                self.ask(f'create database "{self.database}"', "postgres")
                return self.ask("select 1") == "1"

            # Refused while somebody else happens to look at what it is a copy of.
            if not eventually(is_made):
                raise Failed(f"PostgreSQL makes no database:{end_of(process.log)}")
            yield

    def ask(self, question, database=None):
        """Asks it, as the user whom it was made with."""
        said = subprocess.run(
            [self.programs / "psql", "--host", "127.0.0.1", "--port", str(self.port),
             "--username", self.user, "--dbname", database or self.database, "--tuples-only",
             "--no-align", "--no-password", "--command", question],
            env=os.environ | {"PGPASSWORD": self.password}, capture_output=True, text=True,
        )
        return said.stdout.strip()


def _postgresql():
    """The directory of PostgreSQL's programs: on the PATH, or Debian's newest."""
    def version(path):
        return float(Path(path).parts[-2])

    debian = sorted(glob.glob("/usr/lib/postgresql/*/bin"), key=version, reverse=True)
    on_path = shutil.which("initdb")
    for directory in [*([Path(on_path).parent] if on_path else []), *map(Path, debian)]:
        if all((directory / name).is_file() for name in ("initdb", "postgres", "psql")):
            return directory
    raise Failed("there is no PostgreSQL: deploy/install-postgresql")
