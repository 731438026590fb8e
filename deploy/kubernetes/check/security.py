"""The Pod Security Standard "restricted", which the Namespace has the cluster enforce, and more: a
numeric user, a read-only root, no token, no secret in the environment.

https://kubernetes.io/docs/concepts/security/pod-security-standards/
"""

VOLUMES = {
    "configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "persistentVolumeClaim",
    "projected", "secret",
}
SYSCTLS = {
    "kernel.shm_rmid_forced", "net.ipv4.ip_local_port_range", "net.ipv4.ip_local_reserved_ports",
    "net.ipv4.ip_unprivileged_port_start", "net.ipv4.ping_group_range", "net.ipv4.tcp_fin_timeout",
    "net.ipv4.tcp_keepalive_intvl", "net.ipv4.tcp_keepalive_probes", "net.ipv4.tcp_keepalive_time",
    "net.ipv4.tcp_rmem", "net.ipv4.tcp_syncookies", "net.ipv4.tcp_wmem",
}
SELINUX = {None, "", "container_t", "container_init_t", "container_kvm_t", "container_engine_t"}
PROFILES = {"RuntimeDefault", "Localhost"}
LABEL = "pod-security.kubernetes.io/enforce"


def check(report, overlay):
    for namespace in overlay.of_kind("Namespace"):
        labels = namespace["metadata"].get("labels", {})
        report.same(f"the Namespace's {LABEL}", labels.get(LABEL), "restricted")
        report.same(f"the Namespace's {LABEL}-version", labels.get(f"{LABEL}-version"), "latest")
    names = {one["metadata"]["name"] for one in overlay.of_kind("Namespace")}
    for one in overlay.objects:
        if one["kind"] != "Namespace":
            report.unless(
                one["metadata"].get("namespace") in names,
                f"{one['kind']}/{one['metadata']['name']} is in no Namespace of the overlay",
            )
    for workload in overlay.workloads:
        with report.at(f"{workload['kind']}/{workload['metadata']['name']}"):
            _check_pod(report, workload["spec"]["template"]["spec"])


def _check_pod(report, pod):
    for field in "hostNetwork", "hostPID", "hostIPC":
        report.unless(not pod.get(field), f"{field} is not allowed")
    for volume in pod.get("volumes", ()):
        kinds = set(volume) - {"name"}
        report.unless(kinds <= VOLUMES, f"the volume {volume['name']} is a {', '.join(kinds)}")
    context = pod.get("securityContext", {})
    _check_context(report, context)
    for sysctl in context.get("sysctls", ()):
        report.unless(sysctl["name"] in SYSCTLS, f"the sysctl {sysctl['name']} is not safe")
    report.unless(pod.get("automountServiceAccountToken") is False, "has a token for Kubernetes")
    report.unless(pod.get("enableServiceLinks") is False, "has variables that name each Service")
    report.unless(pod.get("serviceAccountName"), "has no account of its own")
    for kind in "initContainers", "containers", "ephemeralContainers":
        for container in pod.get(kind, ()):
            with report.at(f"container {container['name']}"):
                _check_container(report, container, context)


def _check_container(report, container, of_pod):
    own = container.get("securityContext", {})
    context = of_pod | own
    _check_context(report, own)
    report.unless(not own.get("privileged"), "is privileged")
    report.same("allowPrivilegeEscalation", own.get("allowPrivilegeEscalation"), False)
    capabilities = own.get("capabilities", {})
    report.unless("ALL" in capabilities.get("drop", ()), "does not drop all capabilities")
    added = set(capabilities.get("add", ())) - {"NET_BIND_SERVICE"}
    report.unless(not added, f"adds the capabilities {', '.join(sorted(added))}")
    report.unless(own.get("procMount") in (None, "Default"), "has another procMount than Default")
    report.same("runAsNonRoot", context.get("runAsNonRoot"), True)
    profile = context.get("seccompProfile", {}).get("type")
    report.unless(profile in PROFILES, f"has the seccomp profile {profile}")
    for port in container.get("ports", ()):
        report.unless(not port.get("hostPort"), f"takes the host's port {port.get('hostPort')}")
    _check_handlers(report, container)
    # Beyond the standard.
    _check_environment(report, container)
    report.unless(context.get("runAsUser"), "has no numeric runAsUser")
    report.same("readOnlyRootFilesystem", own.get("readOnlyRootFilesystem"), True)


def _check_environment(report, container):
    """Checks that no variable has a secret: child processes inherit variables, dumps have them, and they
    do not change in a running container. `settings.py` checks the values."""
    for variable in container.get("env", ()):
        is_secret = "secretKeyRef" in variable.get("valueFrom", {})
        report.unless(not is_secret, f"takes {variable['name']} from a Secret: mount it as a file")
    for source in container.get("envFrom", ()):
        report.unless("secretRef" not in source, "takes variables from a Secret: mount it as files")


def _check_context(report, context):
    """Checks the settings that pods and containers share."""
    report.unless(context.get("runAsNonRoot", True), "runAsNonRoot is false")
    report.unless(context.get("runAsUser") != 0, "runs as root")
    profile = context.get("seccompProfile", {}).get("type", "RuntimeDefault")
    report.unless(profile in PROFILES, f"has the seccomp profile {profile}")
    profile = context.get("appArmorProfile", {}).get("type", "RuntimeDefault")
    report.unless(profile in PROFILES, f"has the AppArmor profile {profile}")
    selinux = context.get("seLinuxOptions", {})
    report.unless(selinux.get("type") in SELINUX, f"has the SELinux type {selinux.get('type')}")
    report.unless(not selinux.get("user") and not selinux.get("role"), "has a SELinux user or role")
    report.unless(not context.get("windowsOptions", {}).get("hostProcess"), "is a HostProcess")


def _check_handlers(report, container):
    """Checks that no handler calls another host."""
    handlers = {name: container.get(name, {}) for name in container if name.endswith("Probe")}
    handlers |= container.get("lifecycle", {})
    for name, handler in handlers.items():
        for how in "httpGet", "tcpSocket":
            report.unless(not handler.get(how, {}).get("host"), f"{name} names a host")
