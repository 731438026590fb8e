"""Proof of this check by fault injection: each entry breaks a copy of the files of deploy/, and the
containers that are then built or started must show it. See `proof.py`.
"""

import shutil
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import composed
import image
import played
import proof
from overlay import Overlay
from report import Report

# Of what a fault makes fail for ever. The intact files are checked with it as well.
PATIENCE_S = 20
BROKEN = "localhost/microblog-check/broken:1"

GATEWAY = "kubernetes/base/gateway.yaml"
TIMELINE = "kubernetes/base/timeline.yaml"
SERVER = "kubernetes/components/server/server.yaml"
KEYS = "kubernetes/components/identity/keys.yaml"
REDIS = "kubernetes/components/redis/redis.yaml"
POSTGRESQL = "kubernetes/components/postgresql/postgresql.yaml"
LOCAL = "kubernetes/overlays/local"

OF_IMAGE = [
    ("Dockerfile", "FROM ${RUNTIME_IMAGE} AS", "FROM docker.io/library/redis:7.2-bookworm AS",
     "has a shell: dash"),
    ("Dockerfile", "USER 65532:65532", "USER 0:0", "user: found '0:0'"),
    ("Dockerfile", "/build/programs/ /usr/local/bin/", "/build/programs/microblog /usr/local/bin/",
     "microblog-post does not start"),
    ("Dockerfile", "image.revision=${COMMIT}", "image.revision=${VERSION}", "labels: "),
]

# Lists of faults by the services that show them.
OF_COMPOSE = {
    ("gateway",): [
        ("compose.yaml", "0.0.0.0:50050", "0.0.0.0:50059", "listens on: 50059 is unexpected"),
        ("compose.yaml", "- microblog-gateway\n", "- microblog-gateway\n    user: 0:0\n",
         "the user of its process is root"),
        ("compose.yaml", "read_only: true", "read_only: false", "its root file system is writable"),
        ("compose.yaml", "    - ALL\n", "    - NET_RAW\n", "has capabilities"),
        ("compose.yaml", "no-new-privileges:true", "no-new-privileges:false", "gain privileges"),
        ("compose.tls.yaml", "#   chmod -R a+rX tls identity\n", "", "ermission denied"),
    ],
    ("redis",): [
        ("compose.yaml", "user: 999:999", "user: 1234:1234", "ermission denied"),
        ("compose.yaml", "redis:/data", "redis:/data:ro", "Read-only file system"),
    ],
    ("redis", "timeline"): [
        ("compose.yaml", "FILE: /run/secrets/redis-timeline\n    secrets:\n      - redis-timeline\n",
         "FILE: /run/secrets/redis-notice\n    secrets:\n      - redis-notice\n", "WRONGPASS"),
    ],
}

# Lists of faults by the workloads that show them.
OF_LOCAL = {
    ("gateway",): [
        (GATEWAY, "0.0.0.0:50050", "0.0.0.0:50059", "listens on: 50059 is unexpected"),
        (GATEWAY, "containerPort: 50050", "containerPort: 50059",
         "listens on: 50059 is missing"),
        (GATEWAY, "startupProbe:\n            grpc:\n              port: 50050",
         "startupProbe:\n            grpc:\n              port: 50051",
         "its startupProbe never passes"),
        (GATEWAY, "gateway.v1.GatewayService", "gateway.v1.Gateway",
         "its readinessProbe never passes"),
        (KEYS, "secretName: identity", "secretName: identity\n            defaultMode: 256",
         "ermission denied"),
        (SERVER, "runAsUser: 65532", "runAsUser: 0", "the user of its process is root"),
        (SERVER, "readOnlyRootFilesystem: true", "readOnlyRootFilesystem: false",
         "its root file system is writable"),
        (SERVER, "- ALL", "- NET_RAW", "has capabilities"),
        (SERVER, "allowPrivilegeEscalation: false", "allowPrivilegeEscalation: true",
         "gain privileges"),
        (SERVER, "            limits:\n              memory: 256Mi\n", "", "no limit of memory"),
        (SERVER, "terminationGracePeriodSeconds: 40", "terminationGracePeriodSeconds: 1",
         "gateway-0-server ends with 137"),
    ],
    ("redis",): [
        (REDIS, "mountPath: /data\n", "mountPath: /data\n              readOnly: true\n",
         "Read-only file system"),
        (REDIS, "        fsGroup: 999\n", "", "ermission denied"),
        (REDIS, "        runAsUser: 999\n        runAsGroup: 999\n", "", "process is root"),
    ],
    ("redis", "timeline"): [
        (TIMELINE, "name: redis-timeline", "name: redis-notice", "WRONGPASS"),
        (f"{LOCAL}/kustomization.yaml",
         "  - name: redis-timeline\n    literals:\n      - password=local-timeline\n", "",
         "there is no Secret redis-timeline"),
    ],
    ("postgresql",): [
        (POSTGRESQL, "mountPath: /data\n", "mountPath: /data\n              readOnly: true\n",
         "Read-only file system"),
        (POSTGRESQL, "        fsGroup: 999\n", "", "ermission denied"),
        (POSTGRESQL, "            - name: run\n              mountPath: /var/run/postgresql\n", "",
         "could not create lock file"),
    ],
}


def prove(report, podman, deploy):
    """Injects each fault, and reports those that the check does not find."""
    def compose(names):
        return lambda found, copy, _: composed.check_some(found, podman, copy, names, PATIENCE_S)

    def local(names):
        return lambda found, copy, directory: played.check_some(
            found, podman, Overlay(copy / LOCAL), directory, names, PATIENCE_S,
        )

    mounted = Path(podman.podman("image", "mount", image.NAME))
    def build(found, copy, _):
        # The programs of the image that is already built, which saves a build.
        image.build(podman, deploy.parent, mounted / "usr/local/bin", copy, BROKEN)
        try:
            image.check(found, podman, deploy.parent, BROKEN)
        finally:
            podman.buildah("rmi", "--force", BROKEN)

    # Otherwise, a fault could be found because too little is started.
    for check in compose(_all(OF_COMPOSE)), local(_all(OF_LOCAL)):
        with report.at("without a fault"), TemporaryDirectory(prefix="microblog-intact-") as intact:
            check(report, deploy, Path(intact))
    groups = [
        (build, OF_IMAGE),
        *((compose(names), breakages) for names, breakages in OF_COMPOSE.items()),
        *((local(names), breakages) for names, breakages in OF_LOCAL.items()),
    ]
    # One at a time, because names and addresses are the same in all.
    return sum(
        proof.prove(report, breakages, _finder(deploy, check), at_once=1)
        for check, breakages in groups
    )


def _all(groups):
    """The names of all groups."""
    return sorted({name for names in groups for name in names})


def _finder(deploy, check):
    """The function that breaks a copy and checks it."""
    def find(directory, file, spoil):
        begun = time.monotonic()
        copy = shutil.copytree(deploy, directory / "deploy")
        spoil(copy)
        found = Report()
        check(found, copy, directory)
        heads = "; ".join(finding.partition("\n")[0] for finding in found.findings)
        print(f"{file}, {time.monotonic() - begun:.0f} s: {heads}", flush=True)
        yield found.findings

    return find
