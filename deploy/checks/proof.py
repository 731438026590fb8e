"""Proves checks by fault injection: breaks one copy of the files for each fault, and expects a
finding.

A breakage has a file, a text in it, the replacement of its first occurrence, and a part of the
expected finding. If the file no longer contains the text, that is reported: the breakage must be
updated.
"""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory


class _NotFound(Exception):
    """The file does not contain the text."""


def prove(report, breakages, find, at_once=2):
    """Injects each fault, and reports those that the checks do not find. Returns their number.
    Tries `at_once` of them at the same time.

    `find(directory, file, spoil)` makes a copy in the directory, calls `spoil(copy)`, which
    breaks the file, and yields the findings after each step."""
    with ThreadPoolExecutor(at_once) as pool:
        tried = pool.map(lambda one: _try(find, *one), breakages)
        for (file, old, new, wanted), failure in zip(breakages, tried, strict=True):
            if failure:
                report.wrong(f"{file}, {old!r} as {new!r}: {failure}, not {wanted!r}")
    return len(breakages)


def _try(find, file, old, new, wanted):
    """Breaks a copy. Returns the other findings if the expected one is missing."""
    def spoil(copy):
        text = (copy / file).read_text()
        if old not in text:
            raise _NotFound
        (copy / file).write_text(text.replace(old, new, 1))

    findings = []
    with TemporaryDirectory(prefix="microblog-broken-") as directory:
        try:
            for findings in find(Path(directory), file, spoil):
                if any(wanted in finding for finding in findings):
                    return None
        except _NotFound:
            return "text not found"
    return "finds " + ("; ".join(findings) or "nothing")
