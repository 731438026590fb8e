"""Runs an overlay by `podman kube play`."""

import time
from dataclasses import dataclass, replace

import confinement
import image
import pods
import probes
import stores_outside
from front import PORT, Front
from overlay import containers, quantity
from podman import Failed
from processes import TIMEOUT_S
from tour import Caller, Load
from workloads import check_references, labels_of, matches

NETWORK = "pods"
# Fewer than in production, because a check needs two to replace one of them under load.
REPLICAS = 2


@dataclass
class _Pod:
    name: str
    workload: dict
    spec: dict
    container: object
    address: str

    @property
    def running(self):
        """Podman's name of its container."""
        return f"{self.name}-{self.spec['name']}"


def check(report, podman, overlay, program, directory):
    """Starts the pods of an overlay, asks their probes, makes the tour, and replaces each pod of a
    server under load."""
    _with_network(report, podman, overlay, lambda: (
        _Trial(report, podman, overlay, directory, TIMEOUT_S).run(program)
    ))


def check_some(report, podman, overlay, directory, names, patience_s):
    """The part of `check` that needs only one pod of each of these workloads."""
    _with_network(report, podman, overlay, lambda: (
        _Trial(report, podman, overlay, directory, patience_s).run_some(names)
    ))


def _with_network(report, podman, overlay, run):
    """Runs pods in a network of their own, and removes them. Reports what fails."""
    with report.at(f"overlay {overlay.name}"):
        # The kubelet does not start a pod without them.
        if not check_references(report, overlay):
            return
        podman.podman("network", "create", NETWORK)
        try:
            run()
        except Failed as failure:
            report.wrong(str(failure))
        finally:
            podman.remove_all()


class _Trial:
    def __init__(self, report, podman, overlay, directory, patience_s):
        self.report, self.podman, self.overlay = report, podman, overlay
        self.patience_s = patience_s
        self.directory = directory / overlay.name
        self.directory.mkdir()
        self.containers = {one.name: one for one in containers(overlay)}
        self.numbers = {}
        self.name = f"overlay {overlay.name}"

    def run(self, program):
        print(f"{self.name}: kube play gets its templates, except for\n{pods.REPLACED}")
        self._start_stores_outside()
        running = []
        for workload in self.overlay.workloads:
            for _ in range(REPLICAS if self._is_server(workload) else 1):
                running.append(self._play(workload))
        begun = time.monotonic()
        for pod in running:
            self._check_ready(pod)
        print(f"{self.name}: {len(running)} pods are ready after {time.monotonic() - begun:.0f} s")
        with Front() as front:
            front.addresses = self._gateways(running)
            caller = self._caller(program, running)
            caller.tour()
            print(f"{self.name}: the tour is right")
            caller.write()
            with Load(caller) as load:
                self._replace_all(running, front, load)
            print(f"{self.name}: {load.calls} calls during the replacement, "
                  f"{load.repeated} repeated, {len(load.failures)} failed")
            for failure in load.failures:
                self.report.wrong(failure)
            caller.read()

    def run_some(self, names):
        """Starts a pod of each of these workloads, and stops those of servers."""
        workloads = {one["metadata"]["name"]: one for one in self.overlay.workloads}
        running = []
        # In this order, so that the log of a server shows how its store refuses it, not that the
        # store has no address yet.
        for name in names:
            running.append(self._play(workloads[name]))
            self._check_ready(running[-1])
        # It takes long, and shows nothing of a pod that is not ready.
        if not self.report.findings:
            for pod in running:
                if self._is_server(pod.workload):
                    self._stop(pod)

    def _caller(self, program, running):
        """A caller of the gateways, with TLS if these have it."""
        gateway = next(pod for pod in running if self._is_gateway(pod))
        return Caller(program, f"127.0.0.1:{PORT}", self.directory, gateway.container.tls_files)

    def _is_server(self, workload):
        image_name = workload["spec"]["template"]["spec"]["containers"][0]["image"]
        return image_name.rpartition("/")[2].startswith("microblog:")

    def _is_gateway(self, pod):
        return any(port["containerPort"] == PORT for port in pod.spec["ports"])

    def _gateways(self, running):
        return [pod.address for pod in running if self._is_gateway(pod)]

    def _start_stores_outside(self):
        """Starts the stores that are not in the overlay."""
        if "redis" not in self.containers:
            servers = self.containers.values()
            aside = stores_outside.start(self.podman, NETWORK, servers, self.directory)
            self.containers = {
                name: replace(one, environment=stores_outside.without_tls(one.environment))
                for name, one in self.containers.items()
            }
            print(f"{self.name}: outside of it, {aside}")

    def _play(self, workload):
        """Starts a pod of a workload, with the names of its Services."""
        base = workload["metadata"]["name"]
        number = self.numbers[base] = self.numbers.get(base, -1) + 1
        name = f"{base}-{number}"
        spec = workload["spec"]["template"]["spec"]["containers"][0]
        if self._is_server(workload):
            self.podman.podman("tag", image.NAME, spec["image"])
        file = self.directory / f"{name}.yaml"
        file.write_text(pods.manifest(
            workload, self.containers[base], name, self.directory / name,
        ))
        names = ",".join(
            f"alias={service['metadata']['name']}" for service in self.overlay.of_kind("Service")
            if matches({"matchLabels": service["spec"]["selector"]}, labels_of(workload))
        )
        self.podman.podman("kube", "play", "--network", f"{NETWORK}:{names}", file)
        address = self.podman.pod_address(name)
        return _Pod(name, workload, spec, self.containers[base], address)

    def _check_ready(self, pod):
        """Waits until each probe passes, and checks how the pod is confined."""
        until = time.monotonic() + self.patience_s
        for kind, probe in pod.container.probes.items():
            passes = self.podman.eventually(pod.running, lambda: probes.passes(
                self.podman, pod.spec, pod.address, pod.running, probe,
            ), until - time.monotonic())
            self.report.unless(
                passes, f"{pod.name}: its {kind} never passes:{self.podman.end_of_log(pod.running)}"
            )
        if not self.podman.has_ended(pod.running):
            with self.report.at(pod.name):
                self._check_confinement(pod)

    def _check_confinement(self, pod):
        """Compares what the kernel knows of a pod's process with the manifest."""
        pid = self.podman.container(pod.running)["State"]["Pid"]
        context = pod.workload["spec"]["template"]["spec"].get("securityContext", {}) \
            | pod.spec.get("securityContext", {})
        ids = [context.get(key) for key in ("runAsUser", "runAsGroup")]
        confinement.check(self.report, pid, ids, pod.container.ports)
        limit = pod.spec["resources"].get("limits", {}).get("memory")
        confinement.check_memory(self.report, pid, limit and int(quantity(limit)))

    def _replace_all(self, running, front, load):
        """Replaces each pod of a server: starts another, and stops it when that is ready. Calls are
        made before and after each step."""
        for old in [pod for pod in running if self._is_server(pod.workload)]:
            new = self._play(old.workload)
            running.append(new)
            self._check_ready(new)
            running.remove(old)
            front.addresses = self._gateways(running)
            load.more(4)
            self._stop(old)
            load.more(4)

    def _stop(self, pod):
        self.podman.check_stop(self.report, pod.running, pod.container.grace_s)
        self.podman.podman("pod", "rm", "--force", "--time", "0", pod.name)
