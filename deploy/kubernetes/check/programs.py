"""The programs of the workspace: their names, flags, environment variables, defaults and peers. The
reference for all other checks."""

import json
import re
import subprocess
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from processes import TIMEOUT_S

# The stores by flag. Any other flag `--NAME-url` is the address of the server NAME.
STORES = {"redis-url": "redis", "database-url": "postgresql", "otlp-endpoint": "collector"}

# The program that runs any services, and the arguments with which it runs all.
COLOCATED = "microblog"
SERVICES = ("gateway", "user", "relation", "post", "timeline", "notice")
ALL = ("serve", f"--services={','.join(SERVICES)}")

# Read by OpenTelemetry's SDK itself, in every program:
# https://opentelemetry.io/docs/specs/otel/configuration/sdk-environment-variables/
OF_THE_SDK = {"OTEL_RESOURCE_ATTRIBUTES", "OTEL_SERVICE_NAME"}


@dataclass(frozen=True)
class Flag:
    """A flag of a program: its name without dashes, its variable, its default."""

    name: str
    variable: str | None
    default: str | None

    @property
    def owner(self):
        """The service of a flag of `microblog serve` for one service, such as --user-redis-url;
        otherwise empty."""
        service, _, flag = self.name.partition("-")
        is_own = service in SERVICES and (flag in STORES or flag == "listen")
        return service if is_own else ""

    @property
    def callee(self):
        """The server or store at the address in this flag, or None."""
        name = self.name.removeprefix(f"{self.owner}-") if self.owner else self.name
        if name in STORES:
            return STORES[name]
        return name.removesuffix("-url") if name.endswith("-url") else None


@dataclass(frozen=True)
class Program:
    """A program that was built, or all services in one."""

    path: Path
    arguments: tuple = ()

    @property
    def name(self):
        return self.path.name

    @cached_property
    def flags(self):
        """Its flags by their names, as `--help` lists them."""
        output = subprocess.run(
            [self.path, *self.arguments, "--help"], env={}, capture_output=True, text=True, check=True,
            timeout=TIMEOUT_S,
        ).stdout
        # Each begins a line, with at most six spaces. Its text has more, and may name other flags.
        blocks = re.split(r"^ {2,6}(?:-\w, )?--([\w-]+)", output, flags=re.MULTILINE)[1:]
        flags = [_flag(name, block) for name, block in zip(blocks[::2], blocks[1::2])]
        return {flag.name: flag for flag in flags}

    @cached_property
    def variables(self):
        """Its flags with a variable, by the name of the variable."""
        return {flag.variable: flag for flag in self.flags.values() if flag.variable}

    @cached_property
    def callees(self):
        """Its peers and stores, by the variables with their addresses. All services in one process
        are no peers, and each has its own address of a store."""
        flags = [(variable, flag) for variable, flag in self.variables.items() if flag.callee]
        if self.arguments:
            flags = [one for one in flags if one[1].owner or one[1].name == "otlp-endpoint"]
        return {variable: flag.callee for variable, flag in flags}

    @cached_property
    def listens(self):
        """The variables of the listen addresses, by service; none if it is no server."""
        name = self.name.removeprefix("microblog-")
        return {
            flag.owner or name: variable for variable, flag in self.variables.items()
            if flag.name in ("listen", f"{flag.owner}-listen")
        }

    @cached_property
    def ports(self):
        """The default ports, by service."""
        return {
            service: int(self.variables[variable].default.rpartition(":")[2])
            for service, variable in self.listens.items()
        }

    def setting(self, environment, variable):
        """The value of a setting in an environment."""
        return environment.get(variable, self.variables[variable].default)


def _flag(name, block):
    variable = re.search(r"\[env: (\w+)", block)
    default = re.search(r"\[default: (.*?)\]$", block, flags=re.MULTILINE)
    return Flag(name, variable and variable[1], default and default[1])


class Programs:
    """All programs of the workspace, and which of them are servers."""

    def __init__(self, workspace, built):
        self.built = built
        output = subprocess.run(
            ["cargo", "metadata", "--no-deps", "--format-version=1", "--locked", "--offline"],
            cwd=workspace, capture_output=True, text=True, check=True,
        ).stdout
        packages = json.loads(output)["packages"]
        self.rust_version = packages[0]["rust_version"]
        targets = [target for package in packages for target in package["targets"]]
        self.names = {target["name"] for target in targets if target["kind"] == ["bin"]}
        missing = sorted(name for name in self.names if not (built / name).is_file())
        if missing:
            raise SystemExit(
                f"{built} lacks {', '.join(missing)}: cargo build --workspace --bins"
            )

    def program(self, name):
        """A program by its name, or None."""
        return self._all.get(name)

    @cached_property
    def _all(self):
        return {name: Program(self.built / name) for name in self.names}

    @cached_property
    def servers(self):
        """The servers, by their host names: user, post and so on, and all in one."""
        servers = (program for program in self._all.values() if program.ports)
        alone = {server.name.removeprefix("microblog-"): server for server in servers}
        return alone | {COLOCATED: Program(self.built / COLOCATED, ALL)}

    @cached_property
    def alone(self):
        """The servers of one service each."""
        return {name: server for name, server in self.servers.items() if not server.arguments}
