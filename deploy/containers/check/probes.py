"""The probes of a container, asked as the kubelet does."""

import socket
from urllib.request import urlopen

from podman import Failed
from rpc import Channel


def passes(podman, container, address, name, probe):
    """Whether a probe of a container passes. `name` is podman's for it; `address` is the pod's."""
    timeout_s = probe.get("timeoutSeconds", 1)
    if grpc := probe.get("grpc"):
        channel = Channel(grpc["port"], host=address)
        return bool(channel.is_serving(grpc.get("service", ""), timeout_s))
    try:
        if run := probe.get("exec"):
            # podman itself takes up to a second.
            podman.podman("exec", name, *run["command"], timeout=timeout_s + 2)
        elif get := probe.get("httpGet"):
            port = _number(container, get["port"])
            urlopen(f"http://{address}:{port}{get.get('path', '/')}", timeout=timeout_s).close()
        else:
            port = _number(container, probe["tcpSocket"]["port"])
            socket.create_connection((address, port), timeout_s).close()
    except (Failed, OSError):
        return False
    return True


def _number(spec, port):
    """The number of a port, which a probe may name."""
    return next((one["containerPort"] for one in spec["ports"] if one.get("name") == port), port)
