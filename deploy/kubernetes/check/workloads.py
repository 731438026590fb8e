"""Checks that the objects of an overlay are consistent, and that each server is complete."""

import re

from overlay import containers, quantity
from programs import COLOCATED
from settings import check as check_settings
from settings import check_schemes, check_secrets

# Minimum number of replicas by overlay.
REPLICAS_MIN = {"production": 3, "colocated": 3}
SPREAD_OVER = {"topology.kubernetes.io/zone", "kubernetes.io/hostname"}


def check(report, overlay, programs):
    check_references(report, overlay)
    for service in overlay.of_kind("Service"):
        with report.at(f"Service/{service['metadata']['name']}"):
            _check_service(report, overlay, service)
    for container, workload in zip(containers(overlay), overlay.workloads, strict=True):
        with report.at(f"{workload['kind']}/{container.name}"):
            _check_workload(report, overlay, workload)
            _check_resources(report, workload["spec"]["template"]["spec"]["containers"][0])
            check_secrets(report, container)
            if container.name in programs.servers:
                check_settings(report, container, programs)
                _check_probes(report, container, programs)
                _check_server(
                    report, overlay, container, workload, programs.servers[container.name]
                )
    servers = {one["metadata"]["name"] for one in overlay.of_kind("Deployment")}
    wanted = {COLOCATED} if COLOCATED in servers else set(programs.alone)
    report.same("servers", servers & programs.servers.keys(), wanted)
    images = {one.image for one in containers(overlay) if one.name in programs.servers}
    report.unless(len(images) == 1, f"servers are of several images: {', '.join(sorted(images))}")
    _check_scaling(report, overlay)


def check_references(report, overlay):
    """Checks that pods refer to ConfigMaps and Secrets that exist or are listed. Returns whether
    they do."""
    before = len(report.findings)
    for kind, name, key in overlay.references():
        found = overlay.named(kind, name)
        if found is None:
            made_elsewhere = kind == "Secret" and not overlay.of_kind("Secret")
            report.unless(made_elsewhere, f"there is no {kind} {name}")
        elif key:
            report.unless(key in found.get("data", {}), f"{kind} {name} has no {key}")
    used = {(kind, name) for kind, name, _ in overlay.references()}
    for one in overlay.of_kind("ConfigMap", "Secret"):
        name = (one["kind"], one["metadata"]["name"])
        report.unless(name in used, f"unused {name[0]} {name[1]}")
    _check_made_elsewhere(report, overlay)
    return len(report.findings) == before


def _check_made_elsewhere(report, overlay):
    """Checks that the head of an overlay without Secrets lists those that operators must create."""
    if overlay.of_kind("Secret"):
        return
    head = (overlay.directory / "kustomization.yaml").read_text().replace("\\\n#", "")
    listed = re.findall(r"^# +for name in (.*); do$", head, flags=re.MULTILINE)
    singly = re.findall(r"create secret generic ([a-z-]+)", head)
    report.same(
        "Secrets to create, listed in kustomization.yaml",
        {*" ".join(listed).split(), *singly},
        overlay.secrets_wanted,
    )


def matches(selector, labels):
    """Whether a label selector selects these labels."""
    if any(labels.get(name) != value for name, value in selector.get("matchLabels", {}).items()):
        return False
    for expression in selector.get("matchExpressions", ()):
        value, values = labels.get(expression["key"]), expression.get("values", ())
        matched = {
            "In": value in values,
            "NotIn": value not in values,
            "Exists": value is not None,
            "DoesNotExist": value is None,
        }
        if not matched[expression["operator"]]:
            return False
    return True


def labels_of(workload):
    """The labels of a workload's pods."""
    return workload["spec"]["template"]["metadata"]["labels"]


def _check_service(report, overlay, service):
    selector = {"matchLabels": service["spec"]["selector"]}
    selected = [one for one in overlay.workloads if matches(selector, labels_of(one))]
    names = [one["metadata"]["name"] for one in selected]
    if not report.unless(len(selected) == 1, f"selects pods of {', '.join(names) or 'nothing'}"):
        return
    ports = selected[0]["spec"]["template"]["spec"]["containers"][0]["ports"]
    for port in service["spec"]["ports"]:
        target = port.get("targetPort", port["port"])
        found = [one for one in ports if target in (one.get("name"), one["containerPort"])]
        if report.unless(found, f"its pods have no port {target}"):
            # A headless Service resolves to the pods' addresses, so callers use the pods' port.
            report.same(f"the port of {port['name']}", port["port"], found[0]["containerPort"])
    report.unless(
        not service["spec"].get("publishNotReadyAddresses"), "publishes not-ready addresses"
    )


def _check_workload(report, overlay, workload):
    spec = workload["spec"]
    report.unless(matches(spec["selector"], labels_of(workload)), "does not select its own pods")
    others = [one for one in overlay.workloads if one is not workload]
    for other in others:
        report.unless(
            not matches(spec["selector"], labels_of(other)),
            f"selects the pods of {other['metadata']['name']} as well",
        )
    pod = spec["template"]["spec"]
    account = pod.get("serviceAccountName")
    report.unless(overlay.named("ServiceAccount", account), f"there is no account {account}")
    if service := spec.get("serviceName"):
        report.unless(overlay.named("Service", service), f"there is no Service {service}")
    report.unless(len(pod["containers"]) == 1, "has several containers, but only one is checked")
    volumes = [volume["name"] for volume in pod.get("volumes", ())]
    volumes += [claim["metadata"]["name"] for claim in spec.get("volumeClaimTemplates", ())]
    mounted = [mount["name"] for mount in pod["containers"][0].get("volumeMounts", ())]
    report.same("volumes that are mounted", set(mounted), set(volumes))
    tag = pod["containers"][0]["image"].rpartition("/")[2].partition(":")[2]
    report.unless(tag and tag != "latest", "its image has no version")
    for name in "readinessProbe", "livenessProbe":
        report.unless(name in pod["containers"][0], f"has no {name}")


def _check_resources(report, spec):
    requests = spec.get("resources", {}).get("requests", {})
    limits = spec.get("resources", {}).get("limits", {})
    if report.unless({"cpu", "memory"} <= requests.keys(), "does not request cpu and memory"):
        report.unless(
            "memory" in limits and quantity(limits["memory"]) >= quantity(requests["memory"]),
            "has no memory limit, or less than it requests",
        )
    report.unless("cpu" not in limits, "has a limit for cpu, which throttles idle cores")


def _check_probes(report, container, programs):
    program = programs.servers[container.name]
    own = set(program.ports.values())
    others = [
        container.environment.get(variable, "").rpartition(":")[2]
        for variable in ("MICROBLOG_METRICS_LISTEN", "MICROBLOG_HEALTH_LISTEN")
    ]
    declared = own | {int(other) for other in others if other}
    report.same("the ports that it declares", container.ports, declared)
    health = int(others[1] or min(own))
    report.unless(
        health not in own or not container.has_tls,
        "has TLS, which probes do not support, and no MICROBLOG_HEALTH_LISTEN",
    )
    for name, needs_store in (
        ("startupProbe", False), ("readinessProbe", True), ("livenessProbe", False)
    ):
        grpc = container.probes.get(name, {}).get("grpc", {})
        report.same(f"the port of its {name}", grpc.get("port"), health)
        # `probing.py` checks the names against the running server.
        if needs_store and program.arguments:
            report.unless(not grpc.get("service"), f"its {name} is of one service only")
            report.unless(health not in own, f"its {name} is on the port of one service only")
        elif needs_store:
            report.unless(grpc.get("service"), f"its {name} names no service")
        else:
            report.same(f"the service of its {name}", grpc.get("service"), "liveness")


def _check_server(report, overlay, container, workload, program):
    name = container.name
    labels = labels_of(workload)
    for served in program.ports:
        service = overlay.named("Service", served)
        if report.unless(service, f"has no Service {served}"):
            report.same("its Service's address", service["spec"].get("clusterIP"), "None")
            selector = {"matchLabels": service["spec"]["selector"]}
            report.unless(matches(selector, labels), f"the Service {served} does not select it")
    budgets = [
        one for one in overlay.of_kind("PodDisruptionBudget")
        if matches(one["spec"]["selector"], labels)
    ]
    if report.unless(len(budgets) == 1, f"has {len(budgets)} disruption budgets"):
        # minAvailable would block all maintenance of a single replica.
        report.same("maxUnavailable", budgets[0]["spec"].get("maxUnavailable"), 1)
    pod = workload["spec"]["template"]["spec"]
    report.same("its account", pod["serviceAccountName"], name)
    spread = pod.get("topologySpreadConstraints", ())
    report.same("its topology spread", {one["topologyKey"] for one in spread}, SPREAD_OVER)
    for one in spread:
        report.unless(matches(one["labelSelector"], labels), "is spread among other pods")
    _check_drain_delay(report, container, program)
    for addressed in container.addresses(program):
        _check_address(report, overlay, addressed)
    check_schemes(report, container, program, containers(overlay))
    scaled = [
        one["spec"]["minReplicas"] for one in overlay.of_kind("HorizontalPodAutoscaler")
        if one["spec"]["scaleTargetRef"]["name"] == name
    ]
    wanted = REPLICAS_MIN.get(overlay.name, 1)
    replicas = [workload["spec"]["replicas"]] if "replicas" in workload["spec"] else []
    report.unless(len(scaled + replicas) == 1, "its replicas are defined twice, or not at all")
    report.unless(
        min(scaled + replicas, default=1) >= wanted, f"has less than {wanted} replicas"
    )


def _check_drain_delay(report, container, program):
    """Checks that a draining replica accepts calls until its callers have refreshed their
    endpoints."""
    delay, refresh = "MICROBLOG_DRAIN_DELAY_MS", "MICROBLOG_PEER_REFRESH_MS"
    if refresh in program.variables:
        delay_ms, refresh_ms = (
            int(program.setting(container.environment, name)) for name in (delay, refresh)
        )
        report.unless(delay_ms > refresh_ms, f"{delay} is not longer than {refresh}")


def _check_address(report, overlay, addressed):
    variable, callee, host, port = addressed
    if "." in host:
        return
    service = overlay.named("Service", host)
    if report.unless(service, f"{variable}: there is no Service {host}"):
        ports = {one["port"] for one in service["spec"]["ports"]}
        report.unless(port in ports, f"{variable}: the Service {host} has no port {port}")
        report.same(f"{variable}: the pods of {host}",
                    service["spec"]["selector"].get("app.kubernetes.io/name"), callee)


def _check_scaling(report, overlay):
    for one in overlay.of_kind("HorizontalPodAutoscaler"):
        target = one["spec"]["scaleTargetRef"]
        with report.at(f"HorizontalPodAutoscaler/{one['metadata']['name']}"):
            found = overlay.named(target["kind"], target["name"])
            report.unless(found, f"there is no {target['kind']} {target['name']}")
            report.unless(one["spec"]["maxReplicas"] > one["spec"]["minReplicas"], "never scales")
