"""``judges.toml``: what it may say, what is refused and where, and what writing it back leaves alone."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from decider_native import DeciderError, InvalidRequest
from decider_native.judges import (
    DeciderSettings,
    HubSettings,
    MockSettings,
    RemoteSettings,
    read_settings,
    write_default,
)

WHOLE = """\
# Who answers here.
default = "jev"   # until we have a GPU
preload_all = true
idle_minutes = 2.5

[judges.local]
provider = "decider"
model = "decider-2b-v11"
threads = 4

[judges.jev]
provider = "systemone"
host = "https://api.typesafe.ai/"
key_env = "TYPESAFE_API_KEY"

[judges.luna]
provider = "openai"
host = "https://api.openai.com"
key_env = "OPENAI_API_KEY"
price = 1.5
context_window = 400000
attempt_timeout_ms = 5000

[judges.near]
provider = "systemone"
host = "http://127.0.0.1:8000"
model = "decider-4b-v2"

[judges.fake]
provider = "mock"
answers = { refund = 0.9, team = "billing" }
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "judges.toml"


def test_a_whole_file(path: Path) -> None:
    path.write_text(WHOLE)
    assert read_settings(path) == HubSettings(
        default="jev",
        preload_all=True,
        idle_minutes=2.5,
        judges={
            "local": DeciderSettings(name="local", model="decider-2b-v11", options={"threads": 4}),
            "jev": RemoteSettings(
                name="jev",
                provider="systemone",
                host="https://api.typesafe.ai",
                model="jev-latest",
                key_env="TYPESAFE_API_KEY",
                price=0.042,
            ),
            "luna": RemoteSettings(
                name="luna",
                provider="openai",
                host="https://api.openai.com",
                model="gpt-6-luna",
                key_env="OPENAI_API_KEY",
                price=1.5,
                context_window=400_000,
                attempt_timeout_ms=5000,
            ),
            "near": RemoteSettings(
                name="near", provider="systemone", host="http://127.0.0.1:8000", model="decider-4b-v2"
            ),
            "fake": MockSettings(name="fake", answers={"refund": 0.9, "team": "billing"}),
        },
    )


def test_the_least_a_file_says(path: Path) -> None:
    path.write_text('default = "none"')
    assert read_settings(path) == HubSettings(judges={}, default="none", preload_all=False, idle_minutes=10.0)
    path.write_text('default = "a"\n[judges.a]\nprovider = "decider"\n')
    assert read_settings(path).judges == {"a": DeciderSettings(name="a", model="decider-4b-v2", options={})}


HOST = 'host = "http://h"'
SYSTEMONE = f'[judges.j]\nprovider = "systemone"\n{HOST}\n'
OPENAI = f'[judges.j]\nprovider = "openai"\n{HOST}\n'
REFUSED = [
    ("", "default", "missing"),
    ("default = 1", "default", "text"),
    ('default = ""', "default", "empty"),
    ('default = "j"', "default", "names no judge"),
    ('default = "none"\ncolour = 1', "colour", "unknown"),
    ('default = "none"\npreload_all = 1', "preload_all", "true or false"),
    ('default = "none"\nidle_minutes = 0', "idle_minutes", "above 0"),
    ('default = "none"\nidle_minutes = nan', "idle_minutes", "above 0"),
    ('default = "none"\njudges = 1', "judges", "a table"),
    ('default = "none"\n[judges]\nj = 1', "judges.j", "a table"),
    ('default = "none"\n[judges.j]', "judges.j.provider", "missing"),
    ('default = "none"\n[judges.j]\nprovider = "gpt"', "judges.j.provider", "decider, systemone, openai, mock"),
    ('default = "none"\n[judges.J]\nprovider = "mock"', "judges.J", "no name"),
    ('default = "none"\n[judges.none]\nprovider = "mock"', "judges.none", "meaning of its own"),
    ('default = "none"\n[judges.default]\nprovider = "mock"', "judges.default", "meaning of its own"),
    ('default = "none"\n[judges.j]\nprovider = "mock"\nhost = "x"', "judges.j.host", "unknown"),
    ('default = "none"\n[judges.j]\nprovider = "mock"\nanswers = 1', "judges.j.answers", "a table"),
    ('default = "none"\n[judges.j]\nprovider = "decider"\nthreads = "4"', "judges.j.threads", "an integer"),
    ('default = "none"\n[judges.j]\nprovider = "decider"\nthreads = true', "judges.j.threads", "an integer"),
    ('default = "none"\n[judges.j]\nprovider = "decider"\nkey_env = "X"', "judges.j.key_env", "unknown"),
    ('default = "none"\n[judges.j]\nprovider = "systemone"', "judges.j.host", "missing"),
    *(
        (f'default = "none"\n[judges.j]\nprovider = "systemone"\nhost = "{host}"', "judges.j.host", part)
        for host, part in [
            ("typesafe.ai", "an address"),
            ("ftp://typesafe.ai", "an address"),
            ("https://", "an address"),
            ("https://h:99999", "an address"),
            ("https://h?x=1", "an address"),
            ("https://h h", "an address"),
            ("https://api.openai.com/v1/", "leave /v1 out"),
            ("https://me:hidden@typesafe.ai", "environment variable"),
        ]
    ),
    (f'default = "none"\n{SYSTEMONE}price = 0', "judges.j.price", "above 0"),
    (f'default = "none"\n{SYSTEMONE}price = "1"', "judges.j.price", "above 0"),
    (f'default = "none"\n{SYSTEMONE}context_window = 0', "judges.j.context_window", "from 1"),
    (f'default = "none"\n{SYSTEMONE}attempt_timeout_ms = 1.5', "judges.j.attempt_timeout_ms", "an integer"),
    (f'default = "none"\n{SYSTEMONE}threads = 1', "judges.j.threads", "unknown"),
    *(
        (f'default = "none"\n{SYSTEMONE}{key} = "hidden"', f"judges.j.{key}", "never stands in this file")
        for key in ("key", "api_key", "apikey", "token", "secret", "password", "API_KEY")
    ),
    *(
        (f'default = "none"\n{OPENAI}key_env = "{value}"', "judges.j.key_env", "name of an environment variable")
        for value in ("sk-hidden", "hidden", "$HIDDEN", "HIDDEN KEY")
    ),
    (f'default = "none"\n{OPENAI}', "judges.j.key_env", "subscription sign-in"),
]


@pytest.mark.parametrize(("text", "place", "part"), REFUSED)
def test_what_a_file_may_not_say(path: Path, text: str, place: str, part: str) -> None:
    path.write_text(text)
    with pytest.raises(InvalidRequest) as caught:
        read_settings(path)
    assert caught.value.field == place
    assert part in caught.value.message
    assert str(path) in caught.value.message
    assert "hidden" not in str(caught.value).lower()


@pytest.mark.parametrize(
    "content", [b"default = ", b"\xff", b'default = "none"\ndefault = "none"', b"a = " + 9999 * b"["]
)
def test_what_is_no_toml(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    with pytest.raises(InvalidRequest, match=r"judges\.toml"):
        read_settings(path)


def test_a_file_that_is_not_there(path: Path) -> None:
    with pytest.raises(InvalidRequest, match="No such file"):
        read_settings(path)
    with pytest.raises(InvalidRequest, match="null byte"):
        read_settings("a\0")


def test_a_new_default_changes_one_value(path: Path) -> None:
    path.write_text(WHOLE)
    path.chmod(0o640)
    write_default(path, "fake")
    assert path.read_text() == WHOLE.replace('default = "jev"', 'default = "fake"')
    write_default(path, "none")
    assert path.read_text() == WHOLE.replace('default = "jev"', 'default = "none"')
    assert path.stat().st_mode & 0o777 == 0o640
    assert os.listdir(path.parent) == [path.name]


def test_a_link_to_a_file_stays_a_link(path: Path) -> None:
    path.write_text(WHOLE)
    link = path.with_name("link.toml")
    link.symlink_to(path)
    write_default(link, "none")
    assert link.is_symlink()
    assert read_settings(path).default == "none"


@pytest.mark.parametrize(("text", "name"), [(WHOLE, "nobody"), (WHOLE, ""), (WHOLE + "colour = 1\n", "jev")])
def test_a_refused_default_leaves_the_file_alone(path: Path, text: str, name: str) -> None:
    path.write_text(text)
    before = path.stat()
    with pytest.raises(DeciderError):
        write_default(path, name)
    assert path.read_text() == text
    assert path.stat().st_mtime_ns == before.st_mtime_ns
