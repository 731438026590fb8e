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
  users that the image does not know: podman adds them to its /etc/passwd
  the seccomp profile: podman's own
  StatefulSets: pods; Secrets that are in no overlay: generated
  network policies, autoscaling, disruption budgets, spread and accounts: without effect"""


# Volumes with a mode for their files.
WITH_FILES = "configMap", "secret", "projected"


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
    group = spec.get("securityContext", {}).get("fsGroup", 0)
    volumes = {volume["name"]: volume for volume in spec.get("volumes", ())}
    spec["volumes"] = []
    for mount in main.get("volumeMounts", ()):
        path = _directory(
            directory / mount["name"], container.mounts[mount["mountPath"]],
            volumes.get(mount["name"], {}), group,
        )
        spec["volumes"].append({
            "name": mount["name"], "hostPath": {"path": str(path), "type": "Directory"},
        })
    return yaml.safe_dump({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": name, "labels": template["metadata"]["labels"]}, "spec": spec,
    })


def _directory(path, files, volume, group):
    """A directory with these files, or an empty one, with the owners and modes that the kubelet
    gives to a volume. All belong to root; `group` is the pod's fsGroup, or 0."""
    path.mkdir(parents=True)
    # A claim, which is not among the volumes, has the mode of a new file system.
    mode = 0o777 if "emptyDir" in volume else 0o755
    os.chown(path, 0, group)
    path.chmod(mode | 0o2070 if group else mode)
    source = next((volume[kind] for kind in WITH_FILES if kind in volume), {})
    mode = source.get("defaultMode", 0o644)
    for name, text in (files or {}).items():
        (path / name).write_text(text)
        os.chown(path / name, 0, group)
        (path / name).chmod(mode | 0o440 if group else mode)
    return path
