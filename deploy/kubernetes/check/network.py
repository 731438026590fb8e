"""Checks that the NetworkPolicies allow the calls that servers make, and no others.

The expected calls come from the addresses in the servers' environments. The allowed ones come from
the rules, for each pair of pods and each port."""

from dataclasses import dataclass

from overlay import containers
from programs import COLOCATED
from workloads import labels_of, matches

DNS = "kube-dns"
OUTSIDE = "a pod of another namespace"


@dataclass(frozen=True)
class Pod:
    """An end of a connection."""

    name: str
    labels: tuple
    namespace: tuple
    ports: tuple = ()
    """(name, number, protocol) of each."""

    def is_in(self, rule, own_namespace):
        """Whether a peer of a policy of that namespace matches this pod."""
        if "ipBlock" in rule:
            return False
        if namespaces := rule.get("namespaceSelector"):
            if not matches(namespaces, dict(self.namespace)):
                return False
        elif self.namespace != own_namespace:
            return False
        return matches(rule.get("podSelector", {}), dict(self.labels))


def check(report, overlay, programs):
    policies = [one["spec"] for one in overlay.of_kind("NetworkPolicy")]
    own = tuple({"kubernetes.io/metadata.name": "microblog"}.items())
    pods = [_pod(workload, own) for workload in overlay.workloads]
    strangers = _strangers()
    wanted = _wanted(overlay, programs, pods)
    allowed = set()
    for caller in (*pods, *strangers):
        for callee in (*pods, *strangers):
            if caller is callee or (caller in strangers and callee in strangers):
                continue
            for port in callee.ports:
                if _is_allowed(policies, own, caller, callee, port):
                    allowed.add(f"{caller.name} may call {callee.name} on {port[1]}/{port[2]}")
    report.same("NetworkPolicies", allowed, wanted)
    _check_outside(report, overlay, programs, policies)


def _pod(workload, namespace):
    ports = workload["spec"]["template"]["spec"]["containers"][0].get("ports", ())
    return Pod(
        workload["metadata"]["name"],
        tuple(labels_of(workload).items()),
        namespace,
        tuple(
            (port.get("name"), port["containerPort"], port.get("protocol", "TCP")) for port in ports
        ),
    )


def _strangers():
    """Pods of other namespaces: the cluster's DNS, and pods in namespaces with and without each
    label that grants access."""
    dns = (("dns", 53, "UDP"), ("dns-tcp", 53, "TCP"), ("metrics", 9153, "TCP"))
    kube_system = (("kubernetes.io/metadata.name", "kube-system"),)
    return [
        Pod(DNS, (("k8s-app", DNS),), kube_system, dns),
        Pod(OUTSIDE, (), (), (("http", 80, "TCP"),)),
        # Another namespace may use the same labels.
        Pod(OUTSIDE, (("app.kubernetes.io/name", "gateway"),), ()),
        Pod("a caller", (), (("microblog-caller", "true"),)),
        Pod("monitoring", (), (("microblog-monitoring", "true"),)),
    ]


def _wanted(overlay, programs, pods):
    """The expected calls, with lookups of names and calls from other namespaces."""
    wanted = set()
    for container in containers(overlay):
        program = programs.servers.get(container.name)
        for _, _, host, port in container.addresses(program) if program else ():
            if "." not in host:
                wanted.add(f"{container.name} may call {host} on {port}/TCP")
    for pod in pods:
        wanted |= {f"{pod.name} may call {DNS} on 53/{protocol}" for protocol in ("TCP", "UDP")}
        for name, number, _ in pod.ports:
            if pod.name in ("gateway", COLOCATED) and name == "grpc":
                wanted.add(f"a caller may call {pod.name} on {number}/TCP")
            if name == "metrics":
                wanted.add(f"monitoring may call {pod.name} on {number}/TCP")
    return wanted


def _is_allowed(policies, own, caller, callee, port):
    """Whether egress and ingress allow a connection. Other namespaces have no policies."""
    return all((
        caller.namespace != own or _allows(policies, own, "Egress", caller, callee, port),
        callee.namespace != own or _allows(policies, own, "Ingress", callee, caller, port),
    ))


def _allows(policies, own, way, pod, peer, port):
    rules, peers = {"Egress": ("egress", "to"), "Ingress": ("ingress", "from")}[way]
    applicable = [
        policy for policy in policies
        if way in policy["policyTypes"] and matches(policy["podSelector"], dict(pod.labels))
    ]
    # Without a policy for a pod, everything is allowed.
    return not applicable or any(
        _has_port(rule, port)
        and (not rule.get(peers) or any(peer.is_in(one, own) for one in rule[peers]))
        for policy in applicable for rule in policy.get(rules, ())
    )


def _has_port(rule, port):
    name, number, protocol = port
    return not rule.get("ports") or any(
        one.get("protocol", "TCP") == protocol and one.get("port") in (None, name, number)
        for one in rule["ports"]
    )


def _check_outside(report, overlay, programs, policies):
    """Checks the ports on which servers may reach networks outside of the cluster."""
    for workload, container in zip(overlay.workloads, containers(overlay), strict=True):
        program = programs.servers.get(container.name)
        addresses = container.addresses(program) if program else ()
        wanted = {f"{callee} on {port}" for _, callee, host, port in addresses if "." in host}
        wanted_ports = {one.rpartition(" ")[2] for one in wanted}
        found = set()
        for policy in policies:
            if "Egress" not in policy["policyTypes"]:
                continue
            if not matches(policy["podSelector"], labels_of(workload)):
                continue
            for rule in policy.get("egress", ()):
                if not rule.get("to") or any("ipBlock" in peer for peer in rule["to"]):
                    found |= {str(port.get("port")) for port in rule.get("ports", [{}])}
        with report.at(container.name):
            report.same("allowed ports outside of the cluster", found, wanted_ports)
