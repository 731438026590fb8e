"""An overlay, built by kustomize: its objects, and its pods as containers with the environment that
the kubelet would set."""

import base64
import hashlib
import re
import subprocess
import sys
from functools import cached_property
from math import ceil
from pathlib import Path

import yaml

import certificates
from containers import Container

TOOLS = Path(sys.executable).parent
PROBES = ("startupProbe", "readinessProbe", "livenessProbe")


class Overlay:
    """The objects of an overlay."""

    def __init__(self, directory):
        self.name = directory.name
        self.directory = directory
        result = subprocess.run(
            [TOOLS / "kubectl", "kustomize", directory], capture_output=True, text=True
        )
        if result.returncode != 0:
            raise SystemExit(f"kubectl kustomize {directory}:\n{result.stderr}")
        self.warnings = result.stderr.splitlines()
        self.objects = list(yaml.load_all(result.stdout, yaml.CSafeLoader))

    def of_kind(self, *kinds):
        return [one for one in self.objects if one["kind"] in kinds]

    def named(self, kind, name):
        """An object by kind and name, or None."""
        return next((one for one in self.of_kind(kind) if one["metadata"]["name"] == name), None)

    @property
    def workloads(self):
        return self.of_kind("Deployment", "StatefulSet", "DaemonSet", "Job")

    @cached_property
    def secrets_wanted(self):
        """The names of Secrets that pods need."""
        return {name for kind, name, _ in self.references() if kind == "Secret"}

    def references(self):
        """The references of pods by name: (kind, name, key), with None for all keys."""
        for workload in self.workloads:
            pod = workload["spec"]["template"]["spec"]
            for volume in pod.get("volumes", ()):
                for source in volume.get("projected", {}).get("sources", [volume]):
                    if config := source.get("configMap"):
                        yield "ConfigMap", config["name"], None
                    if secret := source.get("secret"):
                        name = secret.get("secretName") or secret.get("name")
                        yield "Secret", name, None
                        for item in secret.get("items", ()):
                            yield "Secret", name, item["key"]
            for container in pod["containers"]:
                for source in container.get("envFrom", ()):
                    for field, kind in ("configMapRef", "ConfigMap"), ("secretRef", "Secret"):
                        if field in source:
                            yield kind, source[field]["name"], None
                for variable in container.get("env", ()):
                    source = variable.get("valueFrom", {})
                    for field, kind in ("configMapKeyRef", "ConfigMap"), ("secretKeyRef", "Secret"):
                        if field in source:
                            yield kind, source[field]["name"], source[field]["key"]

    def data(self, kind, name):
        """The data of a ConfigMap or Secret as text. Generates the data of Secrets outside of the
        overlay."""
        found = self.named(kind, name)
        if found is None:
            return _GeneratedSecret(name) if kind == "Secret" else {}
        decode = (lambda text: base64.b64decode(text).decode()) if kind == "Secret" else str
        return {key: decode(value) for key, value in found.get("data", {}).items()}


class _GeneratedSecret(dict):
    """A Secret outside of the overlay, with generated data for every key."""

    def __init__(self, name):
        super().__init__()
        self._name = name

    def __missing__(self, key):
        if key in ("tls.crt", "tls.key", "ca.crt"):
            return certificates.of(self._name.removeprefix("tls-"))[key]
        if key == "callers.json":
            return '{"callers": []}'
        # Valid as a password and as a key.
        return hashlib.sha256(f"{self._name}-{key}".encode()).hexdigest()


def containers(overlay):
    """The only container of each workload."""
    for workload in overlay.workloads:
        pod = workload["spec"]["template"]["spec"]
        spec = pod["containers"][0]
        environment, helpers = _environment(overlay, workload, spec)
        container = Container(
            name=workload["metadata"]["name"],
            image=spec["image"],
            command=[*spec.get("command", ()), *spec.get("args", ())],
            environment=environment,
            helpers=helpers,
            mounts=dict(_mounts(overlay, pod, spec)),
            ports={port["containerPort"] for port in spec.get("ports", ())},
            probes={name: spec[name] for name in PROBES if name in spec},
            grace_s=pod.get("terminationGracePeriodSeconds", 30),
        )
        if container.has_tls:
            container.tls_files = certificates.of(container.name)
        yield container


def _environment(overlay, workload, spec):
    """The environment as the kubelet builds it: all of envFrom, then the variables of env.
    $(NAME) is replaced by an earlier variable of env."""
    environment, own, helpers = {}, {}, set()
    for source in spec.get("envFrom", ()):
        # Another check rejects those from Secrets.
        if "configMapRef" in source:
            environment |= overlay.data("ConfigMap", source["configMapRef"]["name"])
    for variable in spec.get("env", ()):
        value = variable.get("value")
        if value is None:
            value = _value_from(overlay, workload, spec, variable["valueFrom"])
        else:
            used = set(re.findall(r"\$\((\w+)\)", value))
            helpers |= used & own.keys()
            value = re.sub(r"\$\((\w+)\)", lambda name: own.get(name[1], name[0]), value)
        own[variable["name"]] = value
    return environment | own, helpers


def _value_from(overlay, workload, spec, source):
    if key := source.get("configMapKeyRef"):
        return overlay.data("ConfigMap", key["name"]).get(key["key"], "")
    # Another check rejects it.
    if "secretKeyRef" in source:
        return ""
    if source.get("fieldRef", {}).get("fieldPath") == "metadata.name":
        return f"{workload['metadata']['name']}-0"
    if field := source.get("resourceFieldRef"):
        kind, _, resource = field["resource"].partition(".")
        amount = quantity(spec.get("resources", {}).get(kind, {}).get(resource, "0"))
        return str(ceil(amount / quantity(field.get("divisor", "1"))))
    raise SystemExit(f"{workload['metadata']['name']}: unsupported value from {source}")


def _mounts(overlay, pod, spec):
    volumes = {volume["name"]: volume for volume in pod.get("volumes", ())}
    for mount in spec.get("volumeMounts", ()):
        # Other mounts are volume claims.
        volume = volumes.get(mount["name"], {})
        if config := volume.get("configMap"):
            yield mount["mountPath"], overlay.data("ConfigMap", config["name"])
        elif secret := volume.get("secret"):
            data = overlay.data("Secret", secret["secretName"])
            yield mount["mountPath"], {
                item["path"]: data[item["key"]]
                for item in secret["items"]
                # Another check reports missing keys.
                if item["key"] in data or isinstance(data, _GeneratedSecret)
            }
        elif projected := volume.get("projected"):
            secrets = [source["secret"] for source in projected["sources"]]
            yield mount["mountPath"], {
                item["path"]: overlay.data("Secret", secret["name"])[item["key"]]
                for secret in secrets for item in secret["items"]
            }
        else:
            yield mount["mountPath"], None


SUFFIXES = {"m": 1e-3, "": 1, "k": 1e3, "M": 1e6, "G": 1e9, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30}


def quantity(text):
    """A Kubernetes quantity as a number."""
    number, suffix = re.fullmatch(r"([\d.]+)(\w*)", str(text)).groups()
    return float(number) * SUFFIXES[suffix]
