"""Certificates as in production: a CA, and the certificates that it issues to servers. Made by
openssl once per run."""

import subprocess
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

KEY = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
EXTENSIONS = "subjectAltName=DNS:{name},IP:127.0.0.1\nextendedKeyUsage=serverAuth,clientAuth\n"


@cache
def of(name):
    """The files of a server's Secret: the certificate for its name and for 127.0.0.1, its key,
    and the CA certificate."""
    authority = _authority()
    with TemporaryDirectory(prefix="microblog-tls-") as here:
        directory = Path(here)
        for file, text in authority.items():
            (directory / file).write_text(text)
        (directory / "extensions").write_text(EXTENSIONS.format(name=name))
        _openssl(directory, "req", *KEY, "-subj", f"/CN={name}", "-keyout", "tls.key",
                 "-out", "tls.csr")
        _openssl(directory, "x509", "-req", "-in", "tls.csr", "-CA", "ca.crt", "-CAkey", "ca.key",
                 "-CAcreateserial", "-days", "2", "-extfile", "extensions", "-out", "tls.crt")
        return {file: (directory / file).read_text() for file in ("tls.crt", "tls.key", "ca.crt")}


@cache
def _authority():
    with TemporaryDirectory(prefix="microblog-tls-") as here:
        directory = Path(here)
        _openssl(directory, "req", "-x509", *KEY, "-subj", "/CN=authority", "-days", "2",
                 "-keyout", "ca.key", "-out", "ca.crt")
        return {file: (directory / file).read_text() for file in ("ca.key", "ca.crt")}


def _openssl(directory, *arguments):
    try:
        made = subprocess.run(["openssl", *arguments], cwd=directory, capture_output=True, text=True)
    except FileNotFoundError as missing:
        raise SystemExit("openssl not found") from missing
    if made.returncode != 0:
        raise SystemExit(f"openssl {arguments[0]}:\n{made.stderr}")
