"""Whether checks notice what they are for: things are broken on purpose, each in a copy of its own,
and then something has to be found that says so.

A breakage is a file, a text in it, what to put in its first place, and a part of what has to be
found. It says so as well if a text is not there any more: then the breakage is to follow.
"""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory


class _Gone(Exception):
    """There is no such text to break."""


def prove(report, breakages, find):
    """Breaks one thing after the other, and notes what was not noticed. Returns how many there are.

    `find(directory, file, spoil)` makes a copy in the directory, has `spoil(copy)` break the file in
    it, and yields what was found, after each of its steps."""
    with ThreadPoolExecutor(2) as pool:
        tried = pool.map(lambda one: _try(find, *one), breakages)
        for (file, old, new, wanted), failure in zip(breakages, tried, strict=True):
            if failure:
                report.wrong(f"{file}, {old!r} as {new!r}: {failure}, not {wanted!r}")
    return len(breakages)


def _try(find, file, old, new, wanted):
    """Breaks a copy. Returns what was found instead of what was wanted, if it was not."""
    def spoil(copy):
        text = (copy / file).read_text()
        if old not in text:
            raise _Gone
        (copy / file).write_text(text.replace(old, new, 1))

    findings = []
    with TemporaryDirectory(prefix="microblog-broken-") as directory:
        try:
            for findings in find(Path(directory), file, spoil):
                if any(wanted in finding for finding in findings):
                    return None
        except _Gone:
            return "there is no such text any more"
    return "finds " + ("; ".join(findings) or "nothing")
