"""What is wrong, collected: a check goes on after a finding, so that one run tells all of them."""

from contextlib import contextmanager


class Report:
    """The findings of all checks, in the order in which they were made."""

    def __init__(self):
        self.findings = []
        self._place = ""

    @contextmanager
    def at(self, place):
        """Says where the findings of a block are, below where those around it are."""
        before = self._place
        self._place = f"{before}, {place}" if before else place
        try:
            yield self
        finally:
            self._place = before

    def at_once(self, place):
        """Returns a report of a place's own, for what runs beside others; see `take`."""
        own = Report()
        own._place = f"{self._place}, {place}" if self._place else place
        return own

    def take(self, other):
        """Takes over the findings of another report."""
        self.findings += other.findings

    def wrong(self, what):
        """Notes something that is wrong."""
        finding = f"{self._place}: {what}" if self._place else what
        if finding not in self.findings:
            self.findings.append(finding)

    def unless(self, holds, what):
        """Notes something that is wrong, unless it is not."""
        if not holds:
            self.wrong(what)
        return holds

    def same(self, what, found, wanted):
        """Notes a difference between two values, or, of sets, what is missing and what is too
        much."""
        if found == wanted:
            return
        if isinstance(found, (set, frozenset)) and isinstance(wanted, (set, frozenset)):
            for one in sorted(wanted - found, key=str):
                self.wrong(f"{what}: {one} is missing")
            for one in sorted(found - wanted, key=str):
                self.wrong(f"{what}: {one} is there, and should not be")
        else:
            self.wrong(f"{what}: is {found!r}, should be {wanted!r}")
