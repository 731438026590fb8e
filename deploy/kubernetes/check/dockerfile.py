"""Checks that the image is built from the whole workspace, and has each of its programs once, as a
file or as a link."""

import os
import re
import tomllib

# What makes the programs: one, and links to it.
LINKING = (
    "cp target/release/microblog programs/",
    'ln -s microblog "programs/microblog-$server"',
)
# Starts servers of its own, beside a build.
NOT_IN_IMAGE = {"microblog-faults"}


def check(report, deploy, programs, overlays):
    text = re.sub(r"\\\n", " ", (deploy / "Dockerfile").read_text())
    instructions = [
        line.split() for line in text.splitlines() if line and not line.startswith("#")
    ]
    stages = _stages(instructions)
    copied = [name for names, _ in stages.values() for name in names]
    report.same("programs in the image", set(copied), programs.names - NOT_IN_IMAGE)
    report.unless(len(copied) == len(set(copied)), "a program is in the image twice")
    servers = {program.name for program in programs.servers.values()}
    report.same("programs of the default stage", _programs(stages, list(stages)[-1]), servers)
    _check_toolchain(report, instructions, programs.rust_version)
    user = [words[1] for words in instructions if words[0] == "USER"][-1]
    for overlay in overlays:
        for server in programs.servers:
            found = overlay.named("Deployment", server)
            if found is None:
                continue
            spec = found["spec"]["template"]["spec"]
            ids = [spec["securityContext"].get(key) for key in ("runAsUser", "runAsGroup")]
            report.same(f"the user of {server} in {overlay.name}, and the image's", ids,
                        [int(number) for number in user.split(":")])
    _check_context(report, deploy, instructions)
    for command in LINKING:
        report.unless(command in text, f"does not run `{command}`")
    accepted, allowed = (
        tomllib.loads((deploy / file).read_text())
        for file in ("licenses.toml", "../.deny.toml")
    )
    report.same("licences of licenses.toml, and of .deny.toml", set(accepted["accepted"]),
                set(allowed["licenses"]["allow"]))


def _stages(instructions):
    """The programs that each stage copies from another, and the base of each."""
    stages, stage, links = {}, None, []
    for words in instructions:
        if words[0] == "FROM":
            stage = words[3]
            stages[stage] = ([], words[1])
        elif words[0] == "RUN":
            # One program, with links to it.
            if servers := re.search(r"for server in ([a-z ]+);", " ".join(words)):
                links = [f"microblog-{name}" for name in servers[1].split()]
        elif words[0] == "COPY":
            for path in words[1:-1]:
                if path.endswith("/programs/"):
                    stages[stage][0].extend(["microblog", *links])
                elif "/target/release/" in path:
                    stages[stage][0].append(path.rpartition("/")[2])
    return stages


def _programs(stages, stage):
    """The programs of a stage, with those of its base."""
    if stage not in stages:
        return set()
    copied, base = stages[stage]
    return {*copied, *_programs(stages, base)}


def _check_toolchain(report, instructions, wanted):
    """Checks that the toolchain is new enough for the workspace."""
    # The defaults of the base images.
    bases = " ".join(words[1] for words in instructions if words[0] == "ARG")
    version = re.search(r"rust:([\d.]+)", bases)[1]
    parts, wanted_parts = ([int(part) for part in one.split(".")] for one in (version, wanted))
    report.unless(parts >= wanted_parts[:2], f"builds with Rust {version}, before {wanted}")


def _check_context(report, deploy, instructions):
    """Checks that the files of the build context exist, and cover all members of the workspace and
    what the Dockerfile copies."""
    lines = (deploy / "Dockerfile.dockerignore").read_text().splitlines()
    included = [line[1:] for line in lines if line.startswith("!")]
    report.unless("*" in lines, "the build context contains unrelated files")
    workspace = deploy.parent
    for path in included:
        report.unless((workspace / path).exists(), f"Dockerfile.dockerignore: no such path: {path}")
    for words in instructions:
        if words[0] == "COPY" and not words[1].startswith("--from="):
            for path in set(words[1:-1]) - {"."}:
                inside = any(f"{path}/".startswith(f"{one}/") for one in included)
                report.unless(inside, f"Dockerfile.dockerignore leaves {path} out, which is copied")
    manifest = (workspace / "Cargo.toml").read_text()
    members = re.search(r"^members = \[(.*?)\]", manifest, flags=re.MULTILINE | re.DOTALL)[1]
    for member in re.findall(r'"([^"]+)"', members):
        inside = any(f"{member}/".startswith(f"{path}/") for path in included)
        report.unless(inside, f"Dockerfile.dockerignore leaves {member} out")
        for file in (workspace / member).rglob("*.rs"):
            for target in re.findall(r'include_(?:str|bytes)!\(\s*"([^"]+)"', file.read_text()):
                path = os.path.relpath(os.path.normpath(file.parent / target), workspace)
                inside = any(f"{path}/".startswith(f"{one}/") for one in included)
                report.unless(inside, f"Dockerfile.dockerignore leaves {path} out, used by {member}")
