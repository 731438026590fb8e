"""Checks every object against the schema of the newest Kubernetes, without unknown fields."""

import functools

import kubernetes_validate as validator
from kubernetes_validate import utils

# The schemas are large, so they are cached.
utils.schema_contents = functools.cache(utils.schema_contents)


def check(report, overlay):
    """Checks all objects, and returns whether there are no findings."""
    before = len(report.findings)
    newest = validator.latest_version()
    seen = set()
    for one in overlay.objects:
        name = f"{one['kind']}/{one['metadata']['name']}"
        with report.at(name):
            report.unless(name not in seen, "is duplicated")
            seen.add(name)
            try:
                validator.validate(one, newest, strict=True)
            except validator.ValidationError as error:
                path = ".".join(str(step) for step in error.path)
                report.wrong(f"is not of Kubernetes {newest}: {path}: {error.message}")
            except validator.SchemaNotFoundError as error:
                report.wrong(error.message)
    for warning in overlay.warnings:
        report.wrong(f"kustomize warns: {warning}")
    return len(report.findings) == before
