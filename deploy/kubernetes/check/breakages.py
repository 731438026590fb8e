"""Proof of the static checks by fault injection: each entry breaks a copy of the files of deploy/,
and the checks must find it. See `proof.py`.
"""

import shutil

import proof
import reading
from report import Report

SERVER = "kubernetes/components/server/server.yaml"
POST = "kubernetes/base/post.yaml"
RELATION = "kubernetes/base/relation.yaml"
USER = "kubernetes/base/user.yaml"
NOTICE = "kubernetes/base/notice.yaml"
ENV = "kubernetes/components/server/server.env"
SCALING = "kubernetes/components/autoscaling"
TLS = "kubernetes/components/tls"
CALLERS = "kubernetes/components/callers"
IDENTITY = "kubernetes/components/identity"
COLLECTOR = "kubernetes/components/collector/collector.yaml"
COLLECTOR_CONFIG = "kubernetes/components/collector/config.yaml"
LOCAL = "kubernetes/overlays/local"
REDIS = "kubernetes/components/redis/redis.yaml"
POSTGRESQL = "kubernetes/components/postgresql/postgresql.yaml"
PRODUCTION = "kubernetes/overlays/production"
COLOCATED = "kubernetes/overlays/colocated"
MICROBLOG = f"{COLOCATED}/microblog.yaml"

BREAKAGES = [
    # schemas.py
    (SERVER, "maxSkew:", "maxSkw:", "is not of Kubernetes"),
    (POST, "kind: ServiceAccount", "kind: ServiceAcount", "Couldn't find schema"),
    # security.py
    (SERVER, "automountServiceAccountToken: false", "automountServiceAccountToken: true", "token"),
    (SERVER, "enableServiceLinks: false", "enableServiceLinks: true", "variables that name each"),
    (SERVER, "runAsNonRoot: true", "runAsNonRoot: false", "runAsNonRoot"),
    (SERVER, "runAsUser: 65532", "runAsUser: 0", "runs as root"),
    (SERVER, "        runAsUser: 65532\n", "", "no numeric runAsUser"),
    (SERVER, "type: RuntimeDefault", "type: Unconfined", "the seccomp profile Unconfined"),
    (SERVER, "readOnlyRootFilesystem: true", "privileged: true", "is privileged"),
    (SERVER, "readOnlyRootFilesystem: true", "procMount: Unmasked", "procMount"),
    (SERVER, "readOnlyRootFilesystem: true", "readOnlyRootFilesystem: false", "readOnlyRoot"),
    (SERVER, "allowPrivilegeEscalation: false", "runAsGroup: 65532", "allowPrivilegeEscalation"),
    (SERVER, "- ALL", "- NET_RAW", "does not drop all capabilities"),
    (SERVER, "  capabilities:\n", "  capabilities:\n              add: [SYS_TIME]\n",
     "adds the capabilities SYS_TIME"),
    (SERVER, "      securityContext:\n", "      hostNetwork: true\n      securityContext:\n",
     "hostNetwork is not allowed"),
    (SERVER, "        seccompProfile:\n", "        sysctls: [{name: kernel.msgmax, value: '1'}]\n"
     "        seccompProfile:\n", "kernel.msgmax is not safe"),
    (POST, "containerPort: 50053", "containerPort: 50053\n              hostPort: 50053",
     "takes the host's port"),
    (REDIS, "tcpSocket:\n", "tcpSocket:\n              host: 192.0.2.1\n", "names a host"),
    (REDIS, "emptyDir:\n            medium: Memory\n            sizeLimit: 1Mi",
     "hostPath:\n            path: /tmp", "is a hostPath"),
    (POST, "            - name: MICROBLOG_REDIS_URL\n", "            - name: REDIS_PASSWORD\n"
     "              valueFrom:\n                secretKeyRef:\n                  name: redis-post\n"
     "                  key: password\n            - name: MICROBLOG_REDIS_URL\n",
     "takes REDIS_PASSWORD from a Secret"),
    (REDIS, "          # While it loads", "          env:\n            - name: REDISCLI_AUTH\n"
     "              valueFrom:\n                secretKeyRef:\n                  name: redis-admin\n"
     "                  key: password\n          # While it loads",
     "takes REDISCLI_AUTH from a Secret"),
    (SERVER, "- configMapRef:\n                name: server", "- secretRef:\n                name: identity",
     "takes variables from a Secret"),
    ("kubernetes/components/server/namespace.yaml", "enforce: restricted", "enforce: baseline", "Namespace's"),
    # workloads.py: references
    (POST, "key: REDIS_NODES", "key: REDIS_NODE", "has no REDIS_NODE"),
    (POST, "name: redis-post", "name: redis-posts", "there is no Secret redis-posts"),
    (f"{PRODUCTION}/kustomization.yaml", " redis-notice \\\n", " \\\n",
     "redis-notice is missing"),
    (f"{PRODUCTION}/kustomization.yaml", " tls-notice; do", "; do", "tls-notice is missing"),
    (f"{PRODUCTION}/kustomization.yaml", " database-notice; do", "; do", "database-notice is missing"),
    (f"{PRODUCTION}/kustomization.yaml", "generic identity", "generic keys", "identity is missing"),
    (f"{LOCAL}/kustomization.yaml", "- keys=", "- key=", "has no keys"),
    (POST, "  selector:\n    app.kubernetes.io/name: post", "  selector:\n    name: post",
     "selects pods of nothing"),
    (POST, "targetPort: grpc", "targetPort: rpc", "its pods have no port rpc"),
    (POST, "port: 50053\n      targetPort", "port: 80\n      targetPort", "the port of grpc"),
    (POST, "  clusterIP: None\n", "", "its Service's address"),
    (POST, "serviceAccountName: post", "serviceAccountName: user", "its account"),
    (POST, "serviceAccountName: post", "serviceAccountName: poster", "no account poster"),
    (REDIS, "serviceName: redis", "serviceName: redys", "there is no Service redys"),
    (REDIS, "            - name: data\n              mountPath: /data\n", "", "volumes that are"),
    (f"{LOCAL}/kustomization.yaml", "newTag: local", "newTag: latest", "no version"),
    # workloads.py: each server
    (REDIS, "              cpu: 500m\n", "", "does not request cpu"),
    (SERVER, "    limits:\n              memory: 256Mi", "    limits:\n              memory: 128Mi",
     "less than"),
    (SERVER, "limits:\n", "limits:\n              cpu: 2\n", "has a limit for cpu"),
    (SERVER, "kubernetes.io/hostname", "topology.kubernetes.io/region", "its topology spread"),
    (POST, "maxUnavailable: 1", "maxUnavailable: 0", "maxUnavailable"),
    (POST, "AlwaysAllow\n  selector:\n    matchLabels:\n      app.kubernetes.io/name: post",
     "AlwaysAllow\n  selector:\n    matchLabels:\n      name: post", "has 0 disruption budgets"),
    (POST, "  readinessProbe:\n            grpc:\n              port: 50053\n",
     "  readinessProbe:\n            grpc:\n              port: 50052\n",
     "the port of its readinessProbe"),
    (POST, "livenessProbe:\n            grpc:\n              port: 50053\n              service: l",
     "livenessProbe:\n            grpc:\n              port: 50053\n              service: f",
     "the service of its livenessProbe"),
    (POST, "service: liveness", "service: ''", "the service of its startupProbe"),
    (POST, "containerPort: 50053", "containerPort: 50052", "the ports that it declares"),
    (SERVER, "containerPort: 9464", "containerPort: 9465", "the ports that it declares"),
    (f"{TLS}/server.yaml", "readinessProbe:\n            grpc:\n              port: 50060",
     "readinessProbe:\n            grpc:\n              port: 50053",
     "the port of its readinessProbe"),
    (f"{TLS}/server.yaml", "containerPort: 50060", "containerPort: 50061",
     "the ports that it declares"),
    (f"{TLS}/server.yaml", "            - name: MICROBLOG_HEALTH_LISTEN\n"
     "              value: 0.0.0.0:50060\n", "", "which probes do not support"),
    (f"{TLS}/server.yaml", "0.0.0.0:50060", "127.0.0.1:50060", "serves health checks on"),
    (f"{IDENTITY}/keys.yaml", "value: /run/secrets/identity/keys", "value: /run/secrets/keys",
     "which is in none of its volumes"),
    (f"{CALLERS}/callers.yaml", "value: /run/secrets/callers/", "value: /run/callers/",
     "which is in none of its volumes"),
    (f"{TLS}/server.yaml", "_TLS_KEY_FILE", "_TLS_KEYS_FILE", "reads no MICROBLOG_TLS_KEYS_FILE"),
    (f"{TLS}/post.yaml", "https://timeline", "http://timeline", "MICROBLOG_TIMELINE_URL is of h"),
    (f"{TLS}/notice.yaml", "https://user", "http://user", "MICROBLOG_USER_URL is of h"),
    (f"{TLS}/post.yaml", "secretName: tls-post", "secretName: tls-posts", "tls-posts"),
    ("kubernetes/base/kustomization.yaml", "  - timeline.yaml\n", "", "timeline"),
    (f"{SCALING}/common/scaling.yaml", "minReplicas: 3", "minReplicas: 2", "less than 3 replicas"),
    (f"{SCALING}/common/scaling.yaml", "maxReplicas: 12", "maxReplicas: 3", "never"),
    (f"{SCALING}/post.yaml", "    name: post", "    name: posts", "no Deployment posts"),
    (f"{SCALING}/kustomization.yaml", "relation|post", "relation", "defined twice"),
    # settings.py
    (SERVER, "name: MICROBLOG_THREADS", "name: MICROBLOG_THREAD", "reads no MICROBLOG_THREAD"),
    (POST, "@$(REDIS_NODES)", "@$(REDIS_NODE)", "refers to an undefined variable"),
    (ENV, "MICROBLOG_LOG_FORMAT", "MICROBLOG_LOGS", "reads no MICROBLOG_LOGS"),
    (ENV, "TIMEOUT_MS=20000", "TIMEOUT_MS=60000", "its drain may take"),
    (SERVER, "terminationGracePeriodSeconds: 40", "terminationGracePeriodSeconds: 29", "is killed"),
    (POST, "- microblog-post", "- microblog-user", "starts microblog-user"),
    (POST, "- microblog-post", "- microblog-post\n            - --fast", "has no flag --fast"),
    (POST, "0.0.0.0:50053", "0.0.0.0:50063", "the port that it listens on"),
    (POST, "0.0.0.0:50053", "127.0.0.1:50053", "not reachable by others"),
    (ENV, "0.0.0.0:9464", "127.0.0.1:9464", "serves metrics on"),
    (POST, "name: MICROBLOG_DATABASE_URL", "name: DATABASE_URL", "MICROBLOG_DATABASE_URL is missing"),
    (RELATION, "name: MICROBLOG_DATABASE_URL", "name: DATABASE_URL",
     "MICROBLOG_DATABASE_URL is missing"),
    (USER, "name: MICROBLOG_DATABASE_URL", "name: DATABASE_URL",
     "MICROBLOG_DATABASE_URL is missing"),
    (RELATION, "postgres://relation@", "postgres://post@", "the user of MICROBLOG_DATABASE_URL"),
    (POST, "http://timeline:50054", "http://relation:50054", "not of timeline"),
    (POST, "http://timeline:50054", "http://timeline:50055", "has no port 50055"),
    (NOTICE, "name: MICROBLOG_USER_URL", "name: USER_URL", "MICROBLOG_USER_URL is missing"),
    (NOTICE, "://notice@$(REDIS", "://timeline@$(REDIS", "the user of MICROBLOG_REDIS_URL"),
    (NOTICE, "://notice@$(REDIS", "://notice:secret@$(REDIS",
     "MICROBLOG_REDIS_URL has a password"),
    (NOTICE, "name: MICROBLOG_REDIS_PASSWORD_FILE", "name: PASSWORD_FILE",
     "MICROBLOG_REDIS_PASSWORD_FILE is missing"),
    (NOTICE, "path: redis\n", "path: password\n", "which is in none of its volumes"),
    (POSTGRESQL, "name: POSTGRES_PASSWORD_FILE", "name: POSTGRES_PASSWORD",
     "POSTGRES_PASSWORD has a password"),
    # network.py
    (POST, "- gateway\n", "- user\n", "gateway may call post on 50053/TCP is missing"),
    (POST, "          port: 50054", "          port: 50055", "post may call timeline"),
    (POST, "    - from:\n        - podSelector:\n            matchExpressions:\n"
     "              - key: app.kubernetes.io/name\n                operator: In\n"
     "                values:\n                  - gateway\n                  - timeline\n"
     "                  - notice\n      ports", "    - ports",
     "a pod of another namespace may call post"),
    ("kubernetes/components/server/network.yaml", "port: 53", "port: 5353", "kube-dns on 53"),
    ("kubernetes/components/server/network.yaml", "port: 9464", "port: 9465", "monitoring may call post"),
    ("kubernetes/base/gateway.yaml", "microblog-caller: ", "caller: ", "a caller may call gateway"),
    (USER, "                  - notice\n", "", "notice may call user on 50051/TCP is missing"),
    (NOTICE, "          port: 50053\n", "          port: 50054\n", "notice may call post"),
    (REDIS, "                  - timeline\n", "", "timeline may call redis"),
    (POSTGRESQL, "                  - relation\n", "", "relation may call postgresql"),
    (COLLECTOR, "port: 4317\n    - from", "port: 4318\n    - from",
     "may call collector on 4317"),
    (f"{PRODUCTION}/networks.yaml", "port: 6379", "port: 6380", "6379 is missing"),
    (f"{PRODUCTION}/networks.yaml", "          - post\n          - notice\n  policyTypes",
     "          - post\n  policyTypes", "5432 is missing"),
    # all services in one process
    (MICROBLOG, "--services=gateway,user", "--services=gateway", "the services"),
    (MICROBLOG, "://user@$(REDIS", "://post@$(REDIS", "the user of MICROBLOG_USER_REDIS"),
    (MICROBLOG, "name: MICROBLOG_POST_DATABASE_URL", "name: MICROBLOG_DATABASE_URL",
     "MICROBLOG_POST_DATABASE_URL is missing"),
    (MICROBLOG, "name: MICROBLOG_NOTICE_REDIS_URL", "name: MICROBLOG_REDIS_URL",
     "MICROBLOG_NOTICE_REDIS_URL is missing"),
    (MICROBLOG, "value: 0.0.0.0:50053", "value: 0.0.0.0:50063", "the port that it listens on"),
    (MICROBLOG, "targetPort: post", "targetPort: user", "the port of grpc"),
    (MICROBLOG, "readinessProbe:\n            grpc:\n              port: 50060",
     "readinessProbe:\n            grpc:\n              port: 50050", "the port of its readinessProbe"),
    (MICROBLOG, "readinessProbe:\n            grpc:\n              port: 50060",
     "readinessProbe:\n            grpc:\n              port: 50060\n              service: a",
     "is of one service only"),
    (MICROBLOG, "port: 5432", "port: 5433", "5432 is missing"),
    (MICROBLOG, "microblog-caller: ", "caller: ", "a caller may call microblog"),
    (f"{COLOCATED}/kustomization.yaml", "generic tls-microblog", "generic tls", "tls-microblog is"),
    # collector.py
    (COLLECTOR_CONFIG, "0.0.0.0:9464", "0.0.0.0:8889", "ports: 8889 is missing"),
    (COLLECTOR_CONFIG, "0.0.0.0:4317", "localhost:4317", "cannot be reached by others"),
    (COLLECTOR_CONFIG, "        - prometheus\n", "        - debug\n", "prometheus is missing"),
    # compose.py
    ("compose.yaml", "0.0.0.0:50051", "0.0.0.0:50061", "the port that it listens on"),
    ("compose.yaml", "stop_grace_period: 30s", "stop_grace_period: 20s", "is killed after 20 s"),
    ("compose.yaml", "MICROBLOG_USER_URL", "USER_URL", "MICROBLOG_USER_URL is missing"),
    ("compose.yaml", "MICROBLOG_NOTICE_URL", "NOTICE_URL", "MICROBLOG_NOTICE_URL is missing"),
    ("compose.yaml", "@redis:6379", "@redys:6379", "the address of redys"),
    ("compose.yaml", "postgres://relation@", "postgres://post@",
     "the user of MICROBLOG_DATABASE_URL"),
    ("compose.yaml", "redis://notice@", "redis://notice:secret@",
     "MICROBLOG_REDIS_URL has a password"),
    ("compose.yaml", "POSTGRES_PASSWORD_FILE", "POSTGRES_PASSWORD",
     "POSTGRES_PASSWORD has a password"),
    ("compose.yaml", "      - redis-notice\n", "      - redis-user\n",
     "which is in none of its volumes"),
    ("compose.yaml", "./passwords}/redis-post", "./passwords}/redis-posts",
     "the secret redis-post has no file"),
    ("compose.yaml", "http://post:50053", "http://post:50054", "the port"),
    ("compose.yaml", "127.0.0.1:50050:50050", "50050:50050", "open to the network"),
    ("compose.yaml", "./redis:/etc", "./redys:/etc", "no such volume"),
    ("compose.yaml", "otel/opentelemetry-collector:0.137.0", "otel/collector", "no version"),
    ("compose.yaml", "  cap_drop:\n    - ALL\n", "", "cap_drop"),
    ("compose.tls.yaml", "https://timeline", "http://timeline", "MICROBLOG_TIMELINE_URL is of h"),
    ("compose.tls.yaml", "https://post:50053", "https://post:50054", "the port"),
    ("compose.tls.yaml", "_TLS_KEY_FILE", "_TLS_KEYS_FILE", "reads no MICROBLOG_TLS_KEYS_FILE"),
    ("compose.tls.yaml", "tls/tls.crt\n", "tls/server.crt\n", "which is in none of its volumes"),
    ("compose.tls.yaml", "openssl rand -base64 32 >identity/keys", "true",
     "MICROBLOG_IDENTITY_KEY_FILE is /run/secrets/identity/keys, which is in none"),
    ("compose.tls.yaml", "/identity:/run", "/keys:/run", "no such volume"),
    ("compose.tls.yaml", "[*own, *mutual]", "*own", "requires client certificates"),
    ("compose.tls.yaml", "[*own, *mutual]", "*mutual", "servers with keys: user is missing"),
    ("compose.tls.yaml", "mkdir tls identity", "mkdir tls", "the commands of compose.tls.yaml"),
    # dockerfile.py
    ("Dockerfile", "notice post relation", "notice relation", "post is missing"),
    ("Dockerfile", "release/microblog-load", "release/microblog-user", "in the image twice"),
    ("Dockerfile", "release/microblog-load", "release/microblog-lode", "lode is unexpected"),
    ("Dockerfile", "USER 65532:65532", "USER 65533:65533", "and the image's"),
    ("Dockerfile", "rust:1.95", "rust:1.80", "builds with Rust 1.80"),
    ("Dockerfile", "cp target/release/microblog programs/ && \\\n", "", "does not run `cp"),
    ("Dockerfile", "ln -s microblog ", "ln -s microblog-load ", "does not run `ln"),
    ("Dockerfile.dockerignore", "!deploy/licenses.toml\n", "", "licenses.toml out, which is copied"),
    ("licenses.toml", '    "ISC",\n', "", "ISC is missing"),
    ("Dockerfile.dockerignore", "!deploy/redis/users.acl\n", "", "users.acl out"),
    ("Dockerfile.dockerignore", "!gateway\n", "", "leaves gateway out"),
    ("Dockerfile.dockerignore", "!gateway\n", "!gateways\n", "no such path: gateways"),
    ("Dockerfile.dockerignore", "*\n", "", "contains unrelated files"),
]


def prove(report, deploy, programs):
    """Injects each fault, and reports those that the checks do not find."""
    intact = reading.overlays_of(deploy)

    def find(directory, file, spoil):
        for path in deploy.parent.iterdir():
            if path != deploy and path.name != "target":
                (directory / path.name).symlink_to(path)
        copy = shutil.copytree(deploy, directory / "deploy")
        spoil(copy)
        found = Report()
        try:
            reading.check(found, copy, programs, _overlays(copy, file) or intact)
        except SystemExit as error:
            found.wrong(str(error))
        yield found.findings

    return proof.prove(report, BREAKAGES, find)


def _overlays(copy, file):
    """Builds the overlay that contains the file, if any. One overlay suffices, and saves time."""
    if not file.startswith("kubernetes/"):
        return []
    if COLOCATED in file:
        return reading.overlays_of(copy, "colocated")
    is_of_production = any(name in file for name in ("production", "autoscaling", TLS))
    return reading.overlays_of(copy, "production" if is_of_production else "local")
