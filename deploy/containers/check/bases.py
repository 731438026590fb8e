"""Base images from Debian's packages, because not every machine reaches a registry. They have the
names of the images that compose.yaml and the overlays use, so these files stay as they are."""

import hashlib
import shutil
import subprocess
from pathlib import Path
from tempfile import TemporaryDirectory

from podman import BUILD_TIMEOUT_S

FILES = Path(__file__).resolve().parents[1] / "base-images"
SUITE = "bookworm"
# Of an image: its recipe.
LABEL = "microblog.recipe"

# Like gcr.io/distroless/cc-debian12:nonroot: the C library, but no shell and no package manager.
RUNTIME = "localhost/microblog-check/runtime:1"
# Like rust:slim-bookworm: a C compiler, and the toolchain of this machine.
RUST = "localhost/microblog-check/rust:1"

# The user of the images of Redis and PostgreSQL.
ACCOUNT = "--customize-hook=chroot \"$1\" usermod --non-unique --uid 999 {name} && " \
    "chroot \"$1\" groupmod --non-unique --gid 999 {name}"
# All authorities in one file, as distroless has them. Debian's package makes it by a script, which
# needs a shell.
AUTHORITIES = """\
--customize-hook=cd "$1/tmp" && APT_CONFIG=$MMDEBSTRAP_APT_CONFIG apt-get download ca-certificates && dpkg-deb --extract *.deb . && \
mkdir -p "$1/etc/ssl/certs" && \
cat usr/share/ca-certificates/mozilla/*.crt >"$1/etc/ssl/certs/ca-certificates.crt" && \
rm -r ./*"""
# Those of this machine, which may reach crates.io by a proxy with an authority of its own.
AUTHORITIES_HERE = """\
--customize-hook=cp --dereference /etc/ssl/certs/ca-certificates.crt "$1/etc/ssl/certs/\""""
NONROOT = """\
--customize-hook=cd "$1/etc" && \
echo 'root:x:0:0:root:/root:/sbin/nologin' >passwd && \
echo 'nonroot:x:65532:65532:nonroot:/home/nonroot:/sbin/nologin' >>passwd && \
printf 'root:x:0:\\nnonroot:x:65532:\\n' >group && \
mkdir -p ../home/nonroot && chown 65532:65532 ../home/nonroot"""


def _redis(name):
    return name, "minbase", ["redis-server"], [ACCOUNT.format(name="redis")], """\
RUN mkdir -p /data && chown 999:999 /data
WORKDIR /data
"""


def _postgresql(name):
    return name, "minbase", ["postgresql-15"], [ACCOUNT.format(name="postgres")], """\
COPY postgresql /usr/local/bin/
# A layer, because a build mounts /run elsewhere.
COPY --chown=999:999 run /run/
RUN rm -rf /var/lib/postgresql && \
    install --directory --owner 999 --group 999 /var/lib/postgresql/data
ENV PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:/usr/lib/postgresql/15/bin
ENTRYPOINT ["postgresql"]
# A fast shutdown: SIGTERM would wait for all clients.
STOPSIGNAL SIGINT
"""


def _collector(name):
    return name, "minbase", ["python3", "python3-grpcio"], [], """\
COPY collector /usr/local/bin/
USER 10001:10001
ENTRYPOINT ["collector"]
"""


RUST_BASE = (
    RUST, "minbase", ["gcc", "libc6-dev", "ca-certificates"],
    ['--customize-hook=cp -a "$(rustc --print sysroot)/bin" "$(rustc --print sysroot)/lib" '
     '"$1/usr/local/"', AUTHORITIES_HERE],
    "ENV CARGO_HOME=/usr/local/cargo\n",
)
RUNTIME_BASE = (
    RUNTIME, "extract", ["libc6", "libgcc-s1", "base-files", "netbase", "tzdata"],
    [AUTHORITIES, NONROOT], "USER 65532:65532\n",
)


def make(podman, images, with_rust):
    """Makes the missing base images, also in place of these images, and returns their names."""
    makers = {"redis": _redis, "postgres": _postgresql, "opentelemetry-collector": _collector}
    wanted = [RUNTIME_BASE, RUST_BASE] if with_rust else [RUNTIME_BASE]
    for image in sorted(images):
        if maker := makers.get(image.rpartition("/")[2].partition(":")[0]):
            wanted.append(maker(image))
    made = []
    for name, *how in wanted:
        recipe = _recipe(*how)
        image = podman.image(name)
        if image is None or (image["OCIv1"]["config"].get("Labels") or {}).get(LABEL) != recipe:
            _make(podman, name, recipe, *how)
            made.append(name)
    return made


def _recipe(*how):
    """What an image is made of, as a hash: another one is made anew."""
    lines = how[-1]
    files = [file.read_text() for file in sorted(FILES.iterdir()) if f"COPY {file.name} " in lines]
    toolchain = subprocess.run(["rustc", "--version"], capture_output=True, text=True, check=True)
    return hashlib.sha256(repr([how, files, toolchain.stdout]).encode()).hexdigest()


def _make(podman, name, recipe, variant, packages, hooks, lines):
    with TemporaryDirectory(prefix="microblog-base-") as here:
        directory = Path(here)
        podman.command(
            "mmdebstrap", "--quiet", f"--variant={variant}", f"--include={','.join(packages)}",
            *hooks, SUITE, directory / "root.tar", timeout=BUILD_TIMEOUT_S,
        )
        for file in FILES.iterdir():
            shutil.copy(file, directory)
        # Of PostgreSQL's socket, with the mode of the official image.
        (directory / "run/postgresql").mkdir(parents=True)
        (directory / "run/postgresql").chmod(0o3777)
        file = directory / "Dockerfile"
        file.write_text(f"FROM scratch\nADD root.tar /\n{lines}")
        podman.buildah(
            "build", "--quiet", "--isolation", "chroot", "--squash", "--label", f"{LABEL}={recipe}",
            "--tag", name, directory, timeout=BUILD_TIMEOUT_S,
        )
