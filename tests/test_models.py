"""The catalogue, and the way from a name or a path to a file and its configuration."""

from __future__ import annotations

import json
import os
import re
import struct
import sys
from pathlib import Path

import pytest

from decider_native.config import ReadoutConfig
from decider_native.errors import ConfigError, ModelLoadError, ModelNotFound
from decider_native.models import CATALOGUE, DEFAULT_MODEL, find, resolve, weights
from hub_machine import Machine, gguf, write

CONFIG = {"temperature": 1.25, "isolated_levels": True, "neutralize_none": False}


@pytest.fixture(autouse=True)
def _no_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DECIDER_NATIVE_GGUF", raising=False)


# The catalogue


def test_catalogue_is_well_formed() -> None:
    spellings = [spelling for entry in CATALOGUE for spelling in (entry.name, *entry.aliases)]
    assert len(spellings) == len(set(spellings))
    assert CATALOGUE[0].name == DEFAULT_MODEL
    for entry in CATALOGUE:
        assert entry.name == entry.name.casefold()
        assert entry.filename.endswith(".gguf")
        assert entry.sha256 is None or re.fullmatch("[0-9a-f]{64}", entry.sha256)
        assert entry.revision is None or re.fullmatch("[0-9a-f]{40}", entry.revision)
        assert (entry.sha256 is None) == (entry.size_bytes is None)
        assert entry.repo_id is None or (entry.config is None) == (entry.sha256 is None), "pinned means known"


def test_default_model_is_the_pinned_one() -> None:
    entry = find("Decider-4B-v2")
    assert entry is not None
    assert entry.source == (
        "hf:mindchain/decider-4b-v2-GGUF/decider-4b.v2-Q4_K_M.gguf@2796fac5cdad018ef6d9a4a004735ff819f424a2"
    )
    assert entry.config == ReadoutConfig(entry.config.temperatures, "plain", True, False)  # type: ignore[union-attr]
    assert {entry.config.temperatures.of(kind, 2) for kind in ("noul", "choice", "score")} == {1.935}


def test_temperatures_per_type() -> None:
    entry = find("decider-2b")
    assert entry is not None
    assert entry.name == "decider-2b-v11"
    assert entry.config is not None
    assert [entry.config.temperatures.of(kind, 3) for kind in ("choice", "noul", "score")] == [1.164, 1.624, 1.124]


@pytest.mark.parametrize("name", ["decider-5b", "", "no/such/thing", "x" * 5000, "a\0b"])
def test_unknown_name_lists_the_known_ones(name: str) -> None:
    with pytest.raises(ModelNotFound, match=r"unknown model.*known: decider-4b-v2, .*demo; or give the path"):
        resolve(name)


def test_unknown_name_suggests_a_close_one() -> None:
    with pytest.raises(ModelNotFound, match=re.escape("(did you mean decider-4b-v2.1?)")):
        resolve("decider-4b-v2.2")


@pytest.mark.parametrize("name", ["hf:", "hf:owner/file.gguf", "hf:owner/repo/file.bin", "hf:owner/repo/file.gguf@"])
def test_malformed_hub_file(name: str) -> None:
    with pytest.raises(ModelNotFound, match=r"write hf:owner/repo/file\.gguf"):
        resolve(name)


# Paths


def test_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "my model.GGUF", gguf())
    assert resolve(path).path == path
    assert resolve(str(path)).name == "my model"
    assert resolve(path).config is None
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "weights.bin", gguf())
    assert resolve("weights.bin").path == Path("weights.bin")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert resolve("~/my model.GGUF").path == path


def test_catalogue_name_wins_over_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(tmp_path / "machine")
    (tmp_path / "decider-4b-v3").mkdir()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ModelLoadError, match="is a directory"):
        resolve("./decider-4b-v3")
    assert "cannot fetch decider-4b-v3" in machine.call("models.resolve('decider-4b-v3')")["text"]


def test_missing_file(tmp_path: Path) -> None:
    for path in (tmp_path / "no.gguf", tmp_path / "no" / "no.gguf", Path("a\0b.gguf")):
        with pytest.raises(ModelNotFound, match=r"no such file; give the path of an existing \.gguf file"):
            resolve(path)


def test_directory_names_the_files_in_it(tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match=r"is a directory; give the path of a \.gguf file"):
        resolve(tmp_path)
    write(tmp_path / "b.gguf", gguf())
    write(tmp_path / "a.gguf", gguf())
    with pytest.raises(ModelLoadError, match=r"is a directory; name one of its files: a\.gguf, b\.gguf"):
        resolve(tmp_path)


def test_device_is_no_model(tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match="not a regular file; give the path"):
        resolve(Path("/dev/null"))


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"", "is empty: fetch the file again"),
        (b"PK\3\4 a zip", "is not a GGUF file: give a model converted for llama.cpp"),
        (b"version https://git-lfs.github.com/spec/v1\n", "Git LFS pointer.*run `git lfs pull`"),
        (b"<!DOCTYPE html><html>", "web page: download the file itself"),
        (b"GG", "is not a GGUF file"),
        (b"GGUF", "is cut off: 4 bytes.*fetch the file again"),
        (struct.pack("<4sIQQ", b"GGUF", 1, 0, 0), "is GGUF version 1; convert the model again"),
        (struct.pack(">4sIQQ", b"GGUF", 3, 0, 0), "is GGUF version 50331648; convert the model again"),
        (struct.pack("<4sIQQ", b"GGUF", 3, 290, 40) + bytes(1000), "is cut off: 1024 bytes.*at least 10154; fetch"),
    ],
)
def test_not_a_whole_gguf(tmp_path: Path, data: bytes, text: str) -> None:
    path = write(tmp_path / "m.gguf", data)
    with pytest.raises(ModelLoadError, match=text) as caught:
        resolve(path)
    assert str(path) in str(caught.value)


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_unreadable_file(tmp_path: Path) -> None:
    path = write(tmp_path / "m.gguf", gguf())
    path.chmod(0)
    with pytest.raises(ModelLoadError, match="Permission denied; make the file readable"):
        resolve(path)


# The configuration


def test_config_beside_the_file_and_its_overrides(tmp_path: Path) -> None:
    path = write(tmp_path / "m.gguf", gguf())
    beside = write(tmp_path / "decider_config.json", CONFIG)
    other = write(tmp_path / "other.json", {"temperature": 3})
    for source, temperature in ((None, 1.25), (other, 3.0), (str(other), 3.0), ({"temperature": 4}, 4.0)):
        config = resolve(path, config=source).config
        assert config is not None
        assert config.temperatures.default == temperature
    beside.write_bytes(b"\xef\xbb\xbf" + json.dumps(CONFIG).encode())
    assert resolve(path).config is not None


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"{", "is not JSON"),
        (b"\xff", "is not JSON"),
        (b"[" * 100_000, "is not JSON"),
        (b"[1]", "holds no JSON object"),
        (b'{"temperature": 0}', "temperature must be a finite number > 0"),
        (b'{"temperature": NaN}', "temperature must be a finite number > 0"),
    ],
)
def test_unusable_config_names_its_file(tmp_path: Path, data: bytes, text: str) -> None:
    path = write(tmp_path / "m.gguf", gguf())
    beside = write(tmp_path / "decider_config.json", data)
    with pytest.raises(ConfigError, match=text) as caught:
        resolve(path)
    assert str(beside) in str(caught.value)


def test_missing_config_is_an_error(tmp_path: Path) -> None:
    path = write(tmp_path / "m.gguf", gguf())
    with pytest.raises(
        ConfigError, match=r"cannot read .*no\.json: No such file.*give a readable decider_config\.json"
    ):
        resolve(path, config=tmp_path / "no.json")
    with pytest.raises(ConfigError, match="Is a directory"):
        resolve(path, config=tmp_path)


# The variable for air-gapped machines


def test_variable_stands_for_the_default_model_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "local.gguf", gguf())
    monkeypatch.setenv("DECIDER_NATIVE_GGUF", str(path))
    for model in (None, "decider-4b-v2", "DECIDER-4B"):
        found = resolve(model)
        assert (found.name, found.path) == (DEFAULT_MODEL, path)
        assert found.config is not None
        assert found.config.temperatures.default == 1.935
    other = write(tmp_path / "other.gguf", gguf())
    assert resolve(other).path == other
    write(tmp_path / "decider_config.json", CONFIG)
    assert resolve().config != found.config


@pytest.mark.parametrize("name", ["missing.gguf", ".", "text.gguf"])
def test_variable_is_named_in_its_errors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    write(tmp_path / "text.gguf", b"text")
    monkeypatch.setenv("DECIDER_NATIVE_GGUF", str(tmp_path / name))
    with pytest.raises((ModelNotFound, ModelLoadError), match="DECIDER_NATIVE_GGUF="):
        resolve()


# The package's own cache


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({"DECIDER_NATIVE_CACHE": "/a/b", "XDG_CACHE_HOME": "/x", "HOME": "/h"}, "/a/b"),
        ({"DECIDER_NATIVE_CACHE": "~/b", "HOME": "/h"}, "/h/b"),
        ({"XDG_CACHE_HOME": "/x", "HOME": "/h"}, "/x/decider_native"),
        (
            {"HOME": "/h"},
            "/h/Library/Caches/decider_native" if sys.platform == "darwin" else "/h/.cache/decider_native",
        ),
    ],
)
def test_cache_dir(monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], expected: str) -> None:
    for name in ("DECIDER_NATIVE_CACHE", "XDG_CACHE_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert weights.cache_dir() == Path(expected)
