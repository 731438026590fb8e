"""Whether every object is one of the newest Kubernetes, without a field that it does not know."""

import functools

import kubernetes_validate as validator
from kubernetes_validate import utils

# They are large, and would be read anew for each object.
utils.schema_contents = functools.cache(utils.schema_contents)


def check(report, overlay):
    """Checks all objects, and returns whether they are well."""
    before = len(report.findings)
    newest = validator.latest_version()
    seen = set()
    for one in overlay.objects:
        name = f"{one['kind']}/{one['metadata']['name']}"
        with report.at(name):
            report.unless(name not in seen, "is there twice")
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
