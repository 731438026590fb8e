"""Collects findings: checks continue after a finding, so one run reports all of them."""

import traceback
from contextlib import contextmanager
from pathlib import Path


class Report:
    """The findings of all checks, in order."""

    def __init__(self):
        self.findings = []
        self._place = ""

    @contextmanager
    def at(self, place):
        """Adds a location, below that of enclosing blocks, to the findings of a block."""
        before = self._place
        self._place = f"{before}, {place}" if before else place
        try:
            yield self
        finally:
            self._place = before

    def at_once(self, place):
        """Returns a separate report for a concurrent check; see `take`."""
        own = Report()
        own._place = f"{self._place}, {place}" if self._place else place
        return own

    @contextmanager
    def completed(self):
        """Makes an error that ends a block a finding, with its place in the check."""
        try:
            yield
        except Exception as error:
            place = traceback.extract_tb(error.__traceback__)[-1]
            where = f"{Path(place.filename).name}:{place.lineno}"
            self.wrong(f"the check ended: {type(error).__name__}: {error} ({where})")

    def take(self, other):
        """Adds the findings of another report."""
        self.findings += other.findings

    def wrong(self, what):
        """Adds a finding."""
        finding = f"{self._place}: {what}" if self._place else what
        if finding not in self.findings:
            self.findings.append(finding)

    def unless(self, holds, what):
        """Adds a finding if the condition is false."""
        if not holds:
            self.wrong(what)
        return holds

    def same(self, what, found, wanted):
        """Adds a finding if two values differ; for sets, one for each missing or unexpected
        element."""
        if found == wanted:
            return
        if isinstance(found, (set, frozenset)) and isinstance(wanted, (set, frozenset)):
            for one in sorted(wanted - found, key=str):
                self.wrong(f"{what}: {one} is missing")
            for one in sorted(found - wanted, key=str):
                self.wrong(f"{what}: {one} is unexpected")
        else:
            self.wrong(f"{what}: found {found!r}, expected {wanted!r}")
