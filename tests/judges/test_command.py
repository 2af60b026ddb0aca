"""``decider-native judges``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from decider_native.cli import main

from .conftest import local_table

FILE = """\
# a comment
default = "fake"  # another

[judges.jev]
provider = "systemone"
host = "https://api.typesafe.ai"
key_env = "TYPESAFE_API_KEY"

[judges.fake]
provider = "mock"
answers = { urgent = 0.75 }
"""


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TYPESAFE_API_KEY", raising=False)
    path = tmp_path / "judges.toml"
    path.write_text(FILE)
    return path


def test_list(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["judges", "list"]) == 0
    header, jev, fake = capsys.readouterr().out.splitlines()
    assert header.split() == ["NAME", "PROVIDER", "HOST", "MODEL", "PER", "MTOK", "STATE", "FIX"]
    first = ["jev", "systemone", "https://api.typesafe.ai", "jev-latest", "$0.042", "missing_key"]
    assert jev.split()[:6] == first
    assert jev.endswith("TYPESAFE_API_KEY holds no key; set it")
    assert fake.split() == ["*", "fake", "mock", "mock", "ready"]
    assert main(["judges", "list", "--json"]) == 0
    listing = json.loads(capsys.readouterr().out)
    assert [(judge["name"], judge["default"], judge["price"]) for judge in listing] == [
        ("jev", False, 0.042),
        ("fake", True, None),
    ]


def test_test(path: Path, tiny_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path.write_text(FILE + local_table(tiny_path))
    assert main(["judges", "test", "fake"]) == 0
    _, line = capsys.readouterr().out.splitlines()
    assert line.split()[:3] == ["fake", "mock", "0.750"]
    assert "$" not in line
    assert main(["judges", "test"]) == 5
    _, jev, fake, local = capsys.readouterr().out.splitlines()
    assert "missing_key" in jev
    assert fake.split()[1] == "mock"
    assert local.split()[1] == "qwen35-h64-F32"
    assert main(["judges", "test", "--json", "local"]) == 0
    assert json.loads(capsys.readouterr().out)["local"]["status"] == "ok"
    assert main(["judges", "test", "nobody"]) == 2
    assert "known: jev, fake, local" in capsys.readouterr().err


def test_use_and_none(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["judges", "use", "jev"]) == 0
    assert path.read_text() == FILE.replace('"fake"', '"jev"', 1)
    assert main(["judges", "none"]) == 0
    assert path.read_text() == FILE.replace('"fake"', '"none"', 1)
    capsys.readouterr()
    assert main(["judges", "list"]) == 0
    assert capsys.readouterr().out.endswith("\nNo judge is the default.\n")
    assert main(["judges", "use", "fake"]) == 0
    assert main(["judges", "use", "none"]) == 0
    assert path.read_text() == FILE.replace('"fake"', '"none"', 1)
    content = path.read_bytes()
    assert main(["judges", "use", "nobody"]) == 2
    assert "known: jev, fake, none" in capsys.readouterr().err
    assert path.read_bytes() == content


def test_another_file(path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path.rename(tmp_path / "other.toml")
    assert main(["judges", "list"]) == 2
    assert "cannot read judges.toml" in capsys.readouterr().err
    assert main(["judges", "list", "--judges", "other.toml"]) == 0
    assert main(["judges", "none", "--judges", "other.toml"]) == 0
