"""Checks that the flags and variables of a server are known to its program and complete, for
Kubernetes and Compose."""

from urllib.parse import urlsplit

from programs import OF_THE_SDK, STORES

# Maximum time from the end of the drain to the exit: three seconds for a stuck worker, one for a
# password hash in progress, three for the last telemetry.
EXIT_S = 7


def check(report, container, programs):
    """Checks the container of a server."""
    program = programs.servers.get(container.name)
    if not report.unless(program, f"no program of the workspace serves {container.name!r}"):
        return
    if not report.unless(
        container.program == program.name, f"starts {container.program}, not {program.name}"
    ):
        return
    count = len(program.arguments)
    report.same("the services", tuple(container.command[1:count + 1]), program.arguments)
    for argument in container.command[count + 1:]:
        flag = argument.removeprefix("--").partition("=")[0]
        report.unless(flag in program.flags, f"{program.name} has no flag {argument}")
    _check_variables(report, container, program)
    _check_listening(report, container, program)
    _check_drain(report, container, program)


def check_secrets(report, container):
    """Checks that no container, also of a store, has a password in its environment."""
    for variable in container.secrets():
        report.wrong(f"{variable} has a password: name a file")


def check_schemes(report, container, program, every):
    """Checks that a caller uses https for those servers that have TLS, and only for these."""
    others = {one.name: one for one in every}
    for variable, callee in program.callees.items():
        if callee in others and (address := container.environment.get(variable)):
            is_secure = address.startswith("https:")
            if address.startswith(("http:", "https:")):
                report.same(f"{variable} is of https", is_secure, others[callee].has_tls)


def _check_variables(report, container, program):
    for variable, value in container.environment.items():
        report.unless("$(" not in value, f"{variable} refers to an undefined variable: {value}")
        known = variable in program.variables or variable in OF_THE_SDK
        if variable in container.helpers:
            report.unless(not known, f"{variable} is read by {program.name} and by a variable")
        else:
            report.unless(known, f"{program.name} reads no {variable}")
        if variable.endswith("_FILE"):
            directory, _, name = value.rpartition("/")
            report.unless(
                name in (container.mounts.get(directory) or ()),
                f"{variable} is {value}, which is in none of its volumes",
            )
    for variable, callee in program.callees.items():
        if callee == "collector":
            continue
        # The defaults, if any, are addresses of the container itself.
        address = container.environment.get(variable)
        has_address = report.unless(address, f"{variable} is missing: where is {callee}?")
        if has_address and callee in STORES.values():
            owner = program.variables[variable].owner or container.name
            report.same(f"the user of {variable}", urlsplit(address).username, owner)
            file = variable.removesuffix("URL") + "PASSWORD_FILE"
            report.unless(file in container.environment, f"{file} is missing")
    for variable, callee, host, _ in container.addresses(program):
        report.unless(
            host == callee or "." in host, f"{variable} is the address of {host}, not of {callee}"
        )


def _check_listening(report, container, program):
    if container.has_tls:
        # The callers of a gateway have session tokens.
        report.same(
            "requires client certificates",
            "MICROBLOG_TLS_CLIENT_CA_FILE" in container.environment,
            "gateway" not in program.listens,
        )
    for service, variable in program.listens.items():
        listen = program.setting(container.environment, variable)
        host, _, port = listen.rpartition(":")
        report.unless(
            host in ("0.0.0.0", "[::]"), f"listens on {listen}, not reachable by others"
        )
        report.same("the port that it listens on", int(port), program.ports[service])
    others = {
        "MICROBLOG_METRICS_LISTEN": "serves metrics on",
        "MICROBLOG_HEALTH_LISTEN": "serves health checks on",
    }
    for variable, what in others.items():
        address = container.environment.get(variable, "0.0.0.0:0")
        report.unless(
            address.rpartition(":")[0] in ("0.0.0.0", "[::]"),
            f"{what} {address}, not reachable by others",
        )


def _check_drain(report, container, program):
    def seconds(variable):
        return int(program.setting(container.environment, variable)) / 1000

    drain_s = seconds("MICROBLOG_DRAIN_DELAY_MS") + seconds("MICROBLOG_DRAIN_TIMEOUT_MS")
    report.unless(
        drain_s + EXIT_S <= container.grace_s,
        f"is killed after {container.grace_s:g} s, but its drain may take {drain_s:g} s,"
        f" and {EXIT_S} s more to end",
    )
