"""The demo model: real part packages on the import path, real processes at once."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from decider_native.errors import ModelLoadError, ModelNotFound
from decider_native.models import demo
from hub_machine import Machine, gguf, write


@pytest.fixture(autouse=True)
def _own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("DECIDER_NATIVE_CACHE", str(tmp_path / "own"))


@pytest.fixture
def parts(tmp_path: Path) -> dict[str, Any]:
    """Three importable packages with a third of a file each, and what `demo.assemble` must know about them."""
    data = gguf(bytes(range(256)) * 40_000)
    packages = [f"decider_native_test_part{number}" for number in range(3)]
    third = len(data) // 3
    for number, package in enumerate(packages):
        write(tmp_path / "site" / package / "__init__.py", b"raise RuntimeError('no code of a data package runs')")
        end = None if number == 2 else (number + 1) * third
        write(tmp_path / "site" / package / "data" / f"whole.gguf.part{number:02}", data[number * third : end])
    sha256 = hashlib.sha256(data).hexdigest()
    return {"packages": packages, "filename": "whole.gguf", "sha256": sha256, "size": len(data)}


@pytest.fixture
def importable(tmp_path: Path, parts: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    monkeypatch.syspath_prepend(tmp_path / "site")
    return parts


def test_assembly(tmp_path: Path, importable: dict[str, Any]) -> None:
    path = demo.assemble(**importable)
    assert path == tmp_path / "own" / "whole.gguf"
    assert hashlib.sha256(path.read_bytes()).hexdigest() == importable["sha256"]
    before = path.stat()
    assert demo.assemble(**importable) == path
    assert path.stat().st_mtime_ns == before.st_mtime_ns
    assert not list(path.parent.glob("*.partial"))


def test_assembly_replaces_a_short_file(tmp_path: Path, importable: dict[str, Any]) -> None:
    write(tmp_path / "own" / "whole.gguf", b"short")
    write(tmp_path / "own" / "whole.gguf.partial", b"left over")
    path = demo.assemble(**importable)
    assert path.stat().st_size == importable["size"]


def test_assembly_refuses_a_damaged_result(tmp_path: Path, importable: dict[str, Any]) -> None:
    path = write(tmp_path / "own" / "whole.gguf", bytes(importable["size"]))
    with pytest.raises(ModelLoadError, match=f"{path} is damaged.*delete it and try again"):
        demo.assemble(**importable)


def test_assembly_without_the_packages(parts: dict[str, Any]) -> None:
    with pytest.raises(ModelNotFound, match=re.escape('run `pip install "decider-native[demo]"`')):
        demo.assemble(**parts)


def test_assembly_of_incomplete_packages(tmp_path: Path, importable: dict[str, Any]) -> None:
    part = tmp_path / "site" / importable["packages"][1] / "data" / "whole.gguf.part01"
    data = part.read_bytes()
    part.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    with pytest.raises(ModelLoadError, match="damaged, its sha256 differs: run `pip install --force-reinstall"):
        demo.assemble(**importable)
    part.unlink()
    with pytest.raises(ModelLoadError, match="part01 is missing: run `pip install --force-reinstall"):
        demo.assemble(**importable)
    assert not list((tmp_path / "own").glob("whole.gguf*[!k]"))


def test_assembly_into_a_cache_that_cannot_be_written(
    tmp_path: Path, importable: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DECIDER_NATIVE_CACHE", str(write(tmp_path / "file", b"") / "sub"))
    with pytest.raises(ModelLoadError, match=r"cannot write .*it takes 10 MB: free space.*set DECIDER_NATIVE_CACHE"):
        demo.assemble(**importable)


def test_assembly_on_a_full_disk_leaves_nothing_behind(tmp_path: Path, parts: dict[str, Any]) -> None:
    code = (
        "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000));"
        f"from decider_native.models import demo; demo.assemble(**{parts!r})"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path / "site"), *filter(None, sys.path)])}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert "ModelLoadError: cannot write" in done.stderr.splitlines()[-1]
    assert "File too large; it takes 10 MB: free space" in done.stderr.splitlines()[-1]
    assert [path.name for path in (tmp_path / "own").iterdir()] == ["whole.gguf.lock"]


def test_parallel_assembly(tmp_path: Path, parts: dict[str, Any]) -> None:
    code = f"from decider_native.models import demo; print(flush=True); input(); print(demo.assemble(**{parts!r}))"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path / "site"), *filter(None, sys.path)])}
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", code], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for _ in range(4)
    ]
    for process in processes:  # all have imported and wait, so that they start together
        assert process.stdout
        assert process.stdout.readline() == "\n"
    for process in processes:
        assert process.stdin
        process.stdin.write("\n")
        process.stdin.flush()
    path = tmp_path / "own" / "whole.gguf"
    for process in processes:
        assert process.communicate(timeout=60)[0] == f"{path}\n"
        assert process.returncode == 0
    assert hashlib.sha256(path.read_bytes()).hexdigest() == parts["sha256"]


def test_demo_model_by_name(tmp_path: Path) -> None:
    machine = Machine(tmp_path / "machine")
    if importlib.util.find_spec(demo.PACKAGES[0]) is None:
        found = machine.call("models.resolve('demo')")
        assert found["error"] == "ModelNotFound"
        assert 'pip install "decider-native[demo]"' in found["text"]
        return
    assert machine.call("models.local_path(models.find('demo'))") is None
    found = machine.call("models.resolve('demo')")
    assert found["name"] == "demo"
    assert found["temperature"] == 1.0
    path = Path(found["path"])
    assert path.stat().st_size == demo.SIZE_BYTES
    with path.open("rb") as file:
        assert hashlib.file_digest(file, "sha256").hexdigest() == demo.SHA256
    assert machine.call("models.local_path(models.find('gemma-3-270m'))") == {"path": str(path)}
