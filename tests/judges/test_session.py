"""A session's judge: chosen, recorded, kept, restored, and never another one than was chosen."""

from __future__ import annotations

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from decider_native import DeciderError, InvalidRequest
from decider_native.judges import Hub, MissingKey, Session

from .conftest import TWO, Stub, WriteHub, ask, wait_for

FILE = (
    TWO
    + """
[judges.far]
provider = "systemone"
host = "https://far.example"
key_env = "FAR_KEY"
"""
)
KEYS = ["server", "provider", "host", "model", "actor", "at"]


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "session.jsonl"


def records(log: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in log.read_text().splitlines()]


def model(session: Session) -> str:
    envelope = session.evaluate(ask())
    return str(envelope["model"] if envelope["status"] == "ok" else envelope["code"])


def test_a_session_opens_with_a_judge_the_default_or_none(write_hub: WriteHub, log: Path) -> None:
    hub = write_hub(FILE)
    assert model(Session.open(hub, log, "high")) == "high"
    assert model(Session.open(hub, log)) == model(Session.open(hub, log, "default")) == "low"
    nobody = Session.open(hub, log, "none")
    assert (nobody.provider, model(nobody)) == ("none", "provider_unavailable")
    assert [record["server"] for record in records(log)] == ["high", "low", "low", None]


def test_none_is_not_the_default_and_the_default_may_be_none(write_hub: WriteHub, log: Path) -> None:
    hub = write_hub(FILE.replace('"low"', '"none"', 1))
    session = Session.open(hub, log)
    envelope = session.evaluate(ask())
    assert envelope["code"] == "provider_unavailable"
    assert "no judge" in envelope["provider_error"]["message"]
    assert "retry_after_ms" not in envelope
    assert session.models()["code"] == "provider_unavailable"
    with pytest.raises(DeciderError, match="no judge"):
        session.measure("x", {})


def test_a_choice_is_a_record(write_hub: WriteHub, log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAR_KEY", "k")
    hub = write_hub(FILE)
    session = Session.open(hub, log, "low", actor="ann")
    session.set_judge("far", actor="bob")
    session.set_judge("none")
    assert all(list(record) == KEYS for record in records(log))
    plain = [{key: record[key] for key in KEYS[:-1]} for record in records(log)]
    assert plain == [
        {"server": "low", "provider": "mock", "host": None, "model": "low", "actor": "ann"},
        {
            "server": "far",
            "provider": "systemone",
            "host": "https://far.example",
            "model": "jev-latest",
            "actor": "bob",
        },
        {"server": None, "provider": None, "host": None, "model": None, "actor": "ann"},
    ]
    times = [datetime.fromisoformat(record["at"]) for record in records(log)]
    assert times == sorted(times)
    assert all(time.utcoffset() is not None for time in times)


def test_what_is_asked_after_a_choice_comes_after_its_record(write_hub: WriteHub, log: Path) -> None:
    session = Session.open(write_hub(FILE), log)
    seen: list[tuple[str, str]] = []
    for name in ("high", "low", "high"):
        session.set_judge(name)
        session.evaluate(ask(), progress=lambda *counts: seen.append((records(log)[-1]["server"], session.provider)))
    assert seen == [("high", "high"), ("low", "low"), ("high", "high")]


def test_the_judge_is_read_on_every_call(write_hub: WriteHub, log: Path) -> None:
    session = Session.open(write_hub(FILE), log)
    assert model(session) == "low"
    session.set_judge("high")
    assert model(session) == "high"
    session.set_judge("none")
    assert model(session) == "provider_unavailable"


def test_a_new_default_is_not_a_new_choice(write_hub: WriteHub, log: Path, tmp_path: Path) -> None:
    hub = write_hub(FILE)
    session = Session.open(hub, log)
    (tmp_path / "judges.toml").write_text(FILE.replace('"low"', '"high"', 1))
    assert (hub.evaluate(ask())["model"], model(session)) == ("high", "low")
    assert len(records(log)) == 1


def test_a_request_to_a_session_names_its_judge_or_none(write_hub: WriteHub, log: Path) -> None:
    session = Session.open(write_hub(FILE), log)
    assert session.evaluate(ask(provider="low"))["model"] == "low"
    envelope = session.evaluate(ask(provider="high"))
    assert envelope["code"] == "provider_unavailable"
    assert "'low'" in envelope["provider_error"]["message"]


# -- refusals


def untouched(session: Session, log: Path, hub: Hub, config: Path) -> tuple[Any, ...]:
    return session.provider, model(session), log.read_bytes(), hub.settings, config.read_bytes()


@pytest.mark.parametrize(
    ("name", "error", "part"),
    [
        ("nobody", InvalidRequest, "low, high, far, none"),
        ("", InvalidRequest, "known"),
        (None, InvalidRequest, "known"),
        (["low"], InvalidRequest, "known"),
        ("far", MissingKey, "FAR_KEY"),
    ],
)
def test_a_refused_choice_changes_nothing(
    write_hub: WriteHub,
    log: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: Any,
    error: type[DeciderError],
    part: str,
) -> None:
    monkeypatch.delenv("FAR_KEY", raising=False)
    hub = write_hub(FILE)
    session = Session.open(hub, log)
    before = untouched(session, log, hub, tmp_path / "judges.toml")
    with pytest.raises(error, match=part):
        session.set_judge(name)
    assert untouched(session, log, hub, tmp_path / "judges.toml") == before
    with pytest.raises(error, match=part):
        Session.open(hub, tmp_path / "other.jsonl", name)
    assert not (tmp_path / "other.jsonl").exists()


def test_no_choice_comes_from_a_file_that_is_invalid_now(write_hub: WriteHub, log: Path, tmp_path: Path) -> None:
    hub = write_hub(FILE)
    session = Session.open(hub, log)
    (tmp_path / "judges.toml").write_text(FILE + "colour = 1\n")
    before = untouched(session, log, hub, tmp_path / "judges.toml")
    for name in ("high", "none", "default"):
        with pytest.raises(InvalidRequest, match=r"judges\.far\.colour"):
            session.set_judge(name)
    assert untouched(session, log, hub, tmp_path / "judges.toml") == before
    (tmp_path / "judges.toml").write_text(FILE)
    session.set_judge("high")
    assert model(session) == "high"


def test_a_choice_that_cannot_be_recorded_is_not_made(write_hub: WriteHub, log: Path, tmp_path: Path) -> None:
    hub = write_hub(FILE)
    session = Session.open(hub, log)
    content = log.read_bytes()
    log.unlink()
    log.symlink_to("/dev/full")
    with pytest.raises(DeciderError, match="No space left"):
        session.set_judge("high")
    assert (session.provider, model(session)) == ("low", "low")
    log.unlink()
    log.mkdir()
    with pytest.raises(DeciderError, match="cannot write the record"):
        session.set_judge("high")
    log.rmdir()
    log.write_bytes(content)
    assert (session.provider, model(session)) == ("low", "low")
    session.set_judge("high")
    assert [record["server"] for record in records(log)] == ["low", "high"]


def test_no_choice_while_a_call_runs(
    write_hub: WriteHub, log: Path, tmp_path: Path, stub: Stub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAR_KEY", "k")
    hub = write_hub(FILE.replace("https://far.example", stub.url))
    session = Session.open(hub, log, "far")
    answer = {"model": "jev", "answers": {"q": {"type": "noul", "noul": 0.5}}}
    stub.replies = [(200, {}, answer | {"usage": {"input_tokens": 1, "output_tokens": 0}})]
    stub.gate.clear()
    content = log.read_bytes()
    with ThreadPoolExecutor(1) as pool:
        call = pool.submit(session.evaluate, ask())
        wait_for(lambda: stub.seen)
        for name in ("high", "none", "far", "default"):
            with pytest.raises(InvalidRequest, match="between calls"):
                session.set_judge(name)
        assert (session.provider, log.read_bytes()) == ("far", content)
        stub.gate.set()
        assert call.result()["model"] == "jev"
    session.set_judge("high")
    assert model(session) == "high"


# -- resuming


def test_resuming_restores_the_last_choice(write_hub: WriteHub, log: Path) -> None:
    hub = write_hub(FILE)
    Session.open(hub, log, "low").set_judge("high")
    content = log.read_bytes()
    again = Session.resume(hub, log, actor="eve")
    assert (again.provider, again.note, model(again)) == ("high", None, "high")
    assert log.read_bytes() == content
    again.set_judge("none")
    nobody = Session.resume(hub, log)
    assert (nobody.provider, nobody.note, model(nobody)) == ("none", None, "provider_unavailable")
    assert records(log)[-1]["actor"] == "eve"


@pytest.mark.parametrize(
    ("change", "part"),
    [
        (("judges.high", "judges.higher"), "no judge 'high'"),
        (('model = "high"', 'model = "highest"'), "model"),
        (('[judges.high]\nprovider = "mock"', '[judges.high]\nprovider = "decider"'), "provider"),
    ],
)
def test_a_judge_that_is_no_longer_as_it_was_chosen_is_not_restored(
    write_hub: WriteHub, log: Path, change: tuple[str, str], part: str
) -> None:
    Session.open(write_hub(FILE, name="old.toml"), log, "high")
    text = FILE.replace(*change)
    if "decider" in change[1]:
        text = text.replace("answers = { q = 0.9 }", "")
    session = Session.resume(write_hub(text), log)
    assert session.provider == "none"
    assert part in (session.note or "")
    envelope = session.evaluate(ask())
    assert envelope["code"] == "provider_unavailable"
    assert session.note == envelope["provider_error"]["message"]
    session.set_judge("low")
    assert (session.note, model(session)) == (None, "low")


def test_a_host_that_has_changed_gets_nothing(
    write_hub: WriteHub, log: Path, tmp_path: Path, stub: Stub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAR_KEY", "k")
    hub = write_hub(FILE)
    session = Session.open(hub, log, "far")
    (tmp_path / "judges.toml").write_text(FILE.replace("https://far.example", stub.url))
    for one in (session, Session.resume(hub, log)):
        envelope = one.evaluate(ask())
        assert envelope["code"] == "provider_unavailable"
        assert "the host of 'far' was https://far.example" in envelope["provider_error"]["message"]
    assert stub.seen == []


def test_a_judge_that_the_file_loses_during_a_session(write_hub: WriteHub, log: Path, tmp_path: Path) -> None:
    hub = write_hub(FILE)
    session = Session.open(hub, log, "high")
    (tmp_path / "judges.toml").write_text(FILE.replace("judges.high", "judges.higher"))
    assert model(session) == "provider_unavailable"
    (tmp_path / "judges.toml").write_text(FILE)
    assert model(session) == "high"


@pytest.mark.parametrize(
    "content",
    [
        "",
        "\n",
        "{",
        '{"server": "low"}\n',
        "[]\n",
        '{"server": "low", "more": 1}\n',
        '{"server": ["low"], "provider": "mock", "host": null, "model": "mock", "actor": "a", "at": "b"}\n',
        "[" * 100_000,
        None,
        b"\xff\n",
    ],
)
def test_a_log_that_cannot_be_read_restores_nothing(write_hub: WriteHub, log: Path, content: Any) -> None:
    if content is not None:
        log.write_bytes(content if isinstance(content, bytes) else content.encode())
    session = Session.resume(write_hub(FILE), log)
    assert (session.provider, model(session)) == ("none", "provider_unavailable")
    assert str(log) in (session.note or "")


def test_a_record_after_a_torn_line_is_a_line_of_its_own(write_hub: WriteHub, log: Path) -> None:
    hub = write_hub(FILE)
    Session.open(hub, log, "low")
    log.write_bytes(log.read_bytes() + b'{"server": "hi')
    session = Session.resume(hub, log)
    assert session.provider == "none"
    session.set_judge("high")
    assert Session.resume(hub, log).provider == "high"


def test_sessions_and_threads_do_not_mix(write_hub: WriteHub, tmp_path: Path) -> None:
    hub = write_hub(FILE)
    start = threading.Barrier(8)
    shared = {name: Session.open(hub, tmp_path / f"{name}.jsonl", name) for name in ("low", "high")}

    def use(number: int) -> set[str]:
        start.wait()
        own = Session.open(hub, tmp_path / f"{number}.jsonl", "none")
        wrong = set()
        for i in range(30):
            name = ("low", "high")[(number + i) % 2]
            own.set_judge(name)
            wrong |= {model(own), model(shared[name])} - {name}
        return wrong

    with ThreadPoolExecutor(8) as pool:
        assert set().union(*pool.map(use, range(8))) == set()
    assert all(len(records(tmp_path / f"{number}.jsonl")) == 31 for number in range(8))
