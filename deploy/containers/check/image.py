"""Builds the image, and checks it."""

import re
import subprocess
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import bases
from podman import BUILD_TIMEOUT_S, Failed
from programs import SERVICES

NAME = "localhost/microblog:local"
USER = "65532:65532"
SHELLS = {"ash", "bash", "busybox", "dash", "sh"}
# Of the one program.
LINKS = [f"microblog-{name}" for name in SERVICES]


def version(root):
    """The version of the workspace."""
    manifest = (root / "Cargo.toml").read_text()
    return re.search(r'^version = "(.*)"', manifest, flags=re.MULTILINE)[1]


def commit(root):
    """The commit that is built."""
    return subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=root, capture_output=True, text=True, check=True,
    ).stdout.strip()


def _third_party(root):
    """The names of all crates of others in the programs."""
    tree = subprocess.run(
        ["cargo", "tree", "--locked", "--workspace", "--edges", "normal", "--prefix", "none"],
        cwd=root, capture_output=True, text=True, check=True,
    ).stdout
    names = {line.split()[0] for line in tree.splitlines() if line}
    return {name for name in names if not name.startswith("microblog")}


def build(podman, root, programs, deploy=None, name=NAME):
    """Builds the image. With a directory of built programs, its `microblog` stands in for the build stage.
    `deploy` is the directory of the Dockerfile, if it is another than that of `root`."""
    deploy = deploy or root / "deploy"
    arguments = [f"VERSION={version(root)}", f"COMMIT={commit(root)}",
                 f"RUNTIME_IMAGE={bases.RUNTIME}"]
    # In the quick form, no stage with this image runs.
    arguments.append(f"RUST_IMAGE={bases.RUNTIME if programs else bases.RUST}")
    former = podman.image(name)
    with _build_stage(programs) as stage:
        podman.buildah(
            "build", "--isolation", "chroot", "--file", deploy / "Dockerfile",
            "--ignorefile", deploy / "Dockerfile.dockerignore", "--tag", name,
            *(word for one in arguments for word in ("--build-arg", one)), *stage, root,
            timeout=BUILD_TIMEOUT_S,
        )
    if former and former["FromImageID"] != podman.image(name)["FromImageID"]:
        podman.buildah("rmi", "--force", former["FromImageID"])


@contextmanager
def _build_stage(programs):
    """The options for the build stage: its layers are kept; or the programs in a directory replace
    it."""
    if programs is None:
        yield ["--layers"]
        return
    with TemporaryDirectory(prefix="microblog-programs-") as directory:
        built = Path(directory) / "build/programs"
        built.mkdir(parents=True)
        # Debug symbols would make the image several times as large.
        subprocess.run(["strip", "-o", built / "microblog", programs / "microblog"], check=True)
        for name in LINKS:
            (built / name).symlink_to("microblog")
        (built.parent / "licenses.txt").write_text("The build stage writes these notices.\n")
        yield ["--build-context", f"build={directory}"]


def check(report, podman, root, image=NAME, is_compiled=False):
    """Checks the labels, the user and the files of the image, and that its programs know their commit
    if they were compiled in the container. Returns its size in bytes."""
    with report.at("image"):
        found = podman.image(image)
        config = found["OCIv1"]["config"]
        prefix = "org.opencontainers.image."
        labels = {
            key.removeprefix(prefix): value
            for key, value in config["Labels"].items() if key.startswith(prefix)
        }
        report.same("labels", labels, labels | {
            "title": "microblog", "licenses": "Apache-2.0", "version": version(root),
            "revision": commit(root),
        })
        report.same("user", config.get("User"), USER)
        wanted = version(root)
        if is_compiled:
            wanted += f" (commit {commit(root)}, profile release)"
        for name in ("microblog", *LINKS):
            _check_program(report, podman, image, name, f"{name} {wanted}")
        mounted = Path(podman.podman("image", "mount", image))
        found = {file.name for file in mounted.rglob("bin/*")}
        for shell in sorted(found & SHELLS):
            report.wrong(f"has a shell: {shell}")
        if is_compiled:
            notices = (mounted / "usr/share/licenses/microblog/THIRD-PARTY").read_text()
            named = set(re.findall(r"^  ([\w-]+) \d", notices, flags=re.MULTILINE))
            report.same("crates without a licence notice", _third_party(root) - named, set())
        podman.podman("image", "unmount", image)
    return int(podman.podman("image", "inspect", "--format", "{{.Size}}", image))


def _run(podman, image, *command):
    return podman.podman("run", "--rm", "--read-only", "--cap-drop", "all", "--network", "none",
                         image, *command)


def _check_program(report, podman, image, name, wanted):
    try:
        printed = _run(podman, image, name, "--version")
        report.unless(printed.startswith(wanted), f"{name} is another program: {printed}")
    except Failed as failure:
        report.wrong(f"{name} does not start: {failure}")
