"""All static checks of a directory like deploy/ against the programs."""

import collector
import compose
import dockerfile
import network
import schemas
import security
import workloads
from overlay import Overlay


def overlays_of(deploy, names="*"):
    """Builds overlays."""
    return [Overlay(path) for path in sorted((deploy / "kubernetes/overlays").glob(names))]


def check(report, deploy, programs, overlays):
    """Checks a directory with its overlays, and returns its Compose files, alone and with TLS."""
    for overlay in overlays:
        with report.at(f"overlay {overlay.name}"):
            if not schemas.check(report, overlay):
                # The other checks rely on valid objects.
                continue
            security.check(report, overlay)
            workloads.check(report, overlay, programs)
            network.check(report, overlay, programs)
            collector.check(report, overlay)
    with compose.keys(deploy) as variables:
        composed = [
            compose.Compose(deploy), compose.Compose(deploy, compose.WITH_TLS, variables),
        ]
        for one in composed:
            with report.at(one.name):
                compose.check(report, one, programs)
    with report.at("Dockerfile"):
        dockerfile.check(report, deploy, programs, overlays)
    return composed
