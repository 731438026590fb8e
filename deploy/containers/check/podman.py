"""podman and buildah with storage and settings of their own, so that nothing of the check shows
elsewhere on the machine: neither images under the names of others, nor containers."""

import json
import os
import subprocess
import time

from processes import eventually

# Most machines allow this; the limits of podman are above those of some.
SETTINGS = """\
[containers]
default_ulimits = ["nofile=1024:1024", "nproc=1024:1024"]
log_driver = "k8s-file"
[engine]
# crun does not start containers on a machine with both versions of cgroups.
runtime = "runc"
cgroup_manager = "cgroupfs"
events_logger = "file"
[network]
network_backend = "netavark"
network_config_dir = "{run}/networks"
"""
STORAGE = """\
[storage]
driver = "overlay"
graphroot = "{state}/storage"
runroot = "{run}/storage"
"""

TIMEOUT_S = 300
# Of a build, which may compile all programs.
BUILD_TIMEOUT_S = 3 * 3600


class Failed(Exception):
    """A command or a call failed; its text has the end of the output."""


class Podman:
    """Storage in the directory `state`, and what need not outlive a run in `run`."""

    def __init__(self, state, run):
        for path in state, run / "networks":
            path.mkdir(parents=True, exist_ok=True)
        self.run_directory = run
        self.environment = os.environ | {
            "CONTAINERS_CONF": self._write("containers.conf", SETTINGS, state),
            "CONTAINERS_STORAGE_CONF": self._write("storage.conf", STORAGE, state),
        }

    def _write(self, name, text, state):
        path = self.run_directory / name
        path.write_text(text.format(state=state, run=self.run_directory))
        return str(path)

    def command(self, *words, **options):
        """Runs a program with these settings, and returns its output, without warnings."""
        words = [str(word) for word in words]
        shown = f"`{' '.join(words[:4])} …`"
        options = {
            "env": self.environment, "stderr": subprocess.PIPE, "timeout": TIMEOUT_S,
        } | options
        try:
            done = subprocess.run(
                words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, **options,
            )
        except subprocess.TimeoutExpired as late:
            raise Failed(f"{shown} takes more than {late.timeout:.0f} s") from late
        if done.returncode != 0:
            lines = (done.stdout + (done.stderr or "")).splitlines()
            raise Failed(f"{shown} fails:" + "\n  ".join(["", *lines[-12:]]))
        return done.stdout.strip()

    def podman(self, *words, **options):
        return self.command("podman", *words, **options)

    def buildah(self, *words, **options):
        return self.command("buildah", *words, **options)

    def image(self, name):
        """The properties of an image, or None if there is none of this name."""
        try:
            return json.loads(self.buildah("inspect", "--type", "image", name))
        except Failed:
            return None

    def container(self, name):
        """The properties of a container."""
        return json.loads(self.podman("container", "inspect", name))[0]

    def address(self, name):
        """The address of a container in its network."""
        found = self.container(name)
        networks = found["NetworkSettings"]["Networks"]
        return next(iter(networks.values()))["IPAddress"]

    def pod_address(self, name):
        """The address of a pod, which its containers share."""
        return self.address(json.loads(self.podman("pod", "inspect", name))["InfraContainerID"])

    def has_ended(self, name):
        """Whether a container has ended, also if it was started again."""
        found = self.container(name)
        return found["RestartCount"] > 0 or not found["State"]["Running"]

    def eventually(self, name, holds, within_s):
        """Waits until a condition holds. Returns False after the timeout, and if the container has
        ended, because waiting for one that fails is useless."""
        is_known = eventually(lambda: holds() or self.has_ended(name), within_s)
        return is_known and not self.has_ended(name)

    def check_stop(self, report, name, grace_s):
        """Stops a container, and checks that it ends by itself within its grace period."""
        begun = time.monotonic()
        self.podman("stop", "--time", grace_s, name)
        took_s = time.monotonic() - begun
        code = self.container(name)["State"]["ExitCode"]
        report.unless(code == 0, f"{name} ends with {code}:{self.end_of_log(name)}")
        print(f"{name} ends {took_s:.1f} s after SIGTERM, of {grace_s} s", flush=True)

    def end_of_log(self, name):
        """The last lines of a container's log, as part of a finding."""
        try:
            # The container's errors are podman's errors here.
            log = self.podman("logs", "--tail", "6", name, stderr=subprocess.STDOUT)
        except Failed as failure:
            log = str(failure)
        return "\n  ".join(["", *log.splitlines()])

    def remove_all(self):
        """Removes all containers, networks and volumes, also those of an earlier run, or of an
        earlier build, that was killed. Images stay."""
        def removes_pods():
            try:
                self.podman("pod", "rm", "--all", "--force", "--time", "0")
            except Failed:
                return False
            return True

        # It fails if it meets a container between its end and its next start.
        if not eventually(removes_pods):
            raise Failed("pods cannot be removed")
        self.podman("rm", "--all", "--force", "--time", "0")
        self.buildah("rm", "--all")
        self.podman("volume", "rm", "--all", "--force")
        self.podman("network", "prune", "--force")
