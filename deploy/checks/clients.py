"""The official npm clients, for checks that call a gateway from Node.js."""

import filecmp
import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ROOT / "gateway/clients"


def environment():
    """The environment in which `node` and `npm` are found, beside the Python that runs this first."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    return {**os.environ, "PATH": path}


def install(scripts):
    """Installs the clients of package.json into target/clients, unless they are there, and copies scripts
    beside them: modules find them only in a folder above. Returns the folder."""
    directory = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")).resolve() / "clients"
    directory.mkdir(parents=True, exist_ok=True)
    lock, installed = PACKAGES / "package-lock.json", directory / "installed.json"
    if not installed.exists() or not filecmp.cmp(lock, installed, shallow=False):
        for name in "package.json", lock.name:
            shutil.copy(PACKAGES / name, directory)
        command = ["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund"]
        subprocess.run(command, cwd=directory, env=environment(), check=True)
        # Written last, so an interrupted installation starts again.
        shutil.copy(lock, installed)
    for script in scripts:
        shutil.copy(script, directory)
    return directory
