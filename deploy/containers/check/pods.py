"""Pods of an overlay, as `podman kube play` of version 4.3 takes them. The templates stay as they
are, except for what that version cannot do."""

import os
from copy import deepcopy

import yaml

# Printed by the check, so that nobody takes its result for more than it is.
REPLACED = """\
  values of variables, from Secrets and others and in $(NAME): set by the check
  volumes, from ConfigMaps, Secrets, claims and memory: directories of the machine
  probes: asked by the check
  ports: not declared, because they would be published, and pods have the same ones
  Services: names in the network of the pods, also of pods that are not ready; `front`: a proxy
  StatefulSets: pods; Secrets that are in no overlay: generated
  network policies, autoscaling, disruption budgets, spread and accounts: without effect"""


def manifest(workload, container, name, directory):
    """The text of a Pod with this name. Writes the files of its mounts below the directory."""
    template = deepcopy(workload["spec"]["template"])
    spec = template["spec"]
    main = spec["containers"][0]
    main.pop("envFrom", None)
    main.pop("ports", None)
    main["env"] = [{"name": key, "value": value} for key, value in container.environment.items()]
    for probe in container.probes:
        del main[probe]
    owner = spec.get("securityContext", {}).get("runAsUser", 0)
    spec["volumes"] = []
    for mount in main.get("volumeMounts", ()):
        path = _directory(directory / mount["name"], container.mounts[mount["mountPath"]], owner)
        spec["volumes"].append({
            "name": mount["name"], "hostPath": {"path": str(path), "type": "Directory"},
        })
    return yaml.safe_dump({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": name, "labels": template["metadata"]["labels"]}, "spec": spec,
    })


def _directory(path, files, owner):
    """A directory with these files; without any, an empty one that the user of the pod owns."""
    path.mkdir(parents=True)
    if files is None:
        path.chmod(0o700)
        # As by fsGroup.
        os.chown(path, owner, owner)
    for name, text in (files or {}).items():
        (path / name).write_text(text)
    return path
