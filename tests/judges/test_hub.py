"""Judges by name: where a call goes, what the list says of each, and following the file."""

from __future__ import annotations

import logging
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from decider_native import DeciderError
from decider_native.judges import AttemptTimeout, HttpFailure, InvalidResponse, MissingKey, TransportFailure
from small_gguf import write_llama

from .conftest import TWO, Server, Stub, WriteHub, ask, local_table


def noul(envelope: dict[str, Any]) -> Any:
    return envelope["results"]["a"]["answers"]["q"]["noul"] if envelope["status"] == "ok" else envelope


def test_a_call_goes_where_its_provider_says_else_to_the_default(write_hub: WriteHub) -> None:
    hub = write_hub(TWO)
    assert noul(hub.evaluate(ask())) == 0.1
    assert noul(hub.evaluate(ask(provider="high"))) == 0.9
    assert noul(hub.evaluate(ask(provider="high", model="high"))) == 0.9
    assert (hub.provider, hub.models()["models"][0]["name"]) == ("low", "low")


@pytest.mark.parametrize(
    ("text", "more", "part"),
    [
        (TWO, {"provider": "nobody"}, "low, high"),
        (TWO, {"model": "high"}, "'low' answers here"),
        (TWO.replace('"low"', '"none"', 1), {}, "none is chosen"),
        ('default = "none"', {"provider": "x"}, "none at all"),
        (TWO, {"provider": "none"}, "none is chosen"),
    ],
)
def test_a_call_that_goes_nowhere(write_hub: WriteHub, text: str, more: dict[str, Any], part: str) -> None:
    envelope = write_hub(text).evaluate(ask(**more))
    assert envelope["code"] == "provider_unavailable"
    assert part in envelope["provider_error"]["message"]
    assert "retry_after_ms" not in envelope


def test_none_is_never_the_default(write_hub: WriteHub) -> None:
    hub = write_hub(TWO.replace('"low"', '"none"', 1))
    assert hub.evaluate(ask())["code"] == "provider_unavailable"
    assert hub.models()["code"] == "provider_unavailable"
    assert hub.provider == "none"
    assert not any(judge.default for judge in hub.judges())
    assert noul(hub.evaluate(ask(provider="low"))) == 0.1


def test_a_request_that_is_wrong_in_itself_is_wrong_without_a_judge(write_hub: WriteHub) -> None:
    hub = write_hub('default = "none"')
    assert hub.evaluate({"evaluations": []})["code"] == "invalid_request"
    assert hub.evaluate("{")["code"] == "invalid_request"


def test_a_closed_hub(write_hub: WriteHub) -> None:
    hub = write_hub(TWO)
    hub.close()
    envelope = hub.evaluate(ask())
    assert (envelope["code"], envelope["retry_after_ms"]) == ("provider_unavailable", 30_000)


# -- the list


def test_the_list_says_what_each_judge_is_and_how_it_is(
    write_hub: WriteHub,
    server: Server,
    stub: Stub,
    tiny_path: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("TYPESAFE_API_KEY", raising=False)
    monkeypatch.setenv("WRONG_KEY", "wrong")
    stub.replies = [(401, {}, {"detail": {"error_type": "authentication_error", "message": "who?"}})]
    hub = write_hub(
        f"""
        default = "near"
        {local_table(tiny_path)}
        {local_table(tmp_path / "gone.gguf", "gone")}
        [judges.jev]
        provider = "systemone"
        host = "https://api.typesafe.ai"
        key_env = "TYPESAFE_API_KEY"
        [judges.priced]
        provider = "systemone"
        host = "https://api.typesafe.ai"
        key_env = "TYPESAFE_API_KEY"
        price = 0.5
        [judges.preview]
        provider = "systemone"
        host = "https://api.typesafe.ai"
        key_env = "TYPESAFE_API_KEY"
        model = "jev-preview"
        [judges.near]
        provider = "systemone"
        host = "{server.url}"
        [judges.luna]
        provider = "openai"
        host = "{server.url}"
        key_env = "WRONG_KEY"
        [judges.typo]
        provider = "systemone"
        host = "{server.url}"
        model = "jeff"
        [judges.off]
        provider = "systemone"
        host = "http://127.0.0.1:9"
        [judges.stranger]
        provider = "openai"
        host = "{stub.url}"
        key_env = "WRONG_KEY"
        [judges.fake]
        provider = "mock"
        """
    )
    judges = {judge.name: judge for judge in hub.judges()}
    assert {name: judge.state for name, judge in judges.items()} == {
        "local": "ready",
        "gone": "model_unknown",
        "jev": "missing_key",
        "priced": "missing_key",
        "preview": "missing_key",
        "near": "ready",
        "luna": "ready",
        "typo": "model_unknown",
        "off": "unreachable",
        "stranger": "missing_key",
        "fake": "ready",
    }
    assert [name for name, judge in judges.items() if judge.default] == ["near"]
    jev = judges["jev"]
    assert (jev.provider, jev.host, jev.model) == ("systemone", "https://api.typesafe.ai", "jev-latest")
    assert (judges["local"].host, judges["local"].model) == (None, str(tiny_path))
    prices = {name: judge.price for name, judge in judges.items() if judge.price is not None}
    assert prices == {"jev": 0.042, "priced": 0.5}
    assert "TYPESAFE_API_KEY" in jev.fix
    assert "gone.gguf" in judges["gone"].fix
    assert "set model to one of" in judges["typo"].fix
    assert "qwen35-h64-F32" in judges["typo"].fix
    assert "127.0.0.1:9" in judges["off"].fix
    assert "WRONG_KEY" in judges["stranger"].fix
    assert judges["near"].fix == judges["fake"].fix == ""
    # a judge that cannot be asked does not stop the others
    assert hub.evaluate(ask(provider="typo"))["code"] == "provider_unavailable"
    assert hub.evaluate(ask(provider="near"))["status"] == hub.evaluate(ask(provider="local"))["status"] == "ok"


def test_the_library_of_a_judge_that_is_not_installed(write_hub: WriteHub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "typesafe_sdk", None)
    hub = write_hub('default = "j"\n[judges.j]\nprovider = "systemone"\nhost = "http://127.0.0.1:9"\n')
    envelope = hub.evaluate(ask())
    assert envelope["code"] == "provider_unavailable"
    assert 'pip install "decider-native[judges]"' in envelope["provider_error"]["message"]
    assert 'pip install "decider-native[judges]"' in hub.judges()[0].fix


# -- following the file


def test_a_change_of_the_file_counts_from_the_next_call(write_hub: WriteHub, tmp_path: Path) -> None:
    hub = write_hub(TWO)
    path = tmp_path / "judges.toml"
    path.write_text(TWO.replace('"low"', '"high"', 1))
    assert noul(hub.evaluate(ask())) == 0.9
    path.write_text(TWO.replace("q = 0.1", "q = 0.3"))
    assert noul(hub.evaluate(ask())) == 0.3
    path.write_text(TWO.replace("judges.high", "judges.higher"))
    assert hub.evaluate(ask(provider="high"))["code"] == "provider_unavailable"
    assert noul(hub.evaluate(ask(provider="higher"))) == 0.9
    path.write_text('default = "none"')
    assert hub.evaluate(ask())["code"] == "provider_unavailable"
    assert hub.judges() == []


def test_an_invalid_change_keeps_the_last_valid_one_and_says_so(
    write_hub: WriteHub, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    hub = write_hub(TWO)
    path = tmp_path / "judges.toml"
    assert hub.fault is None
    for text, part in [
        (TWO.replace('"low"', '"nobody"', 1), "names no judge"),
        ("default = ", "not TOML"),
        (TWO + "api_key = 'x'", "judges.high.api_key"),
    ]:
        path.write_text(text)
        caplog.clear()
        with caplog.at_level(logging.ERROR, "decider_native.judges"):
            assert [noul(hub.evaluate(ask())) for _ in range(3)] == [0.1] * 3
        assert part in (hub.fault or "")
        assert [part in record.message for record in caplog.records] == [True]
    path.unlink()
    assert noul(hub.evaluate(ask())) == 0.1
    assert "No such file" in (hub.fault or "")
    path.write_text(TWO.replace('"low"', '"high"', 1))
    assert noul(hub.evaluate(ask())) == 0.9
    assert hub.fault is None


def test_a_file_that_goes_before_it_is_looked_at_again(write_hub: WriteHub, tmp_path: Path) -> None:
    hub = write_hub(TWO)
    (tmp_path / "judges.toml").unlink()
    assert "No such file" in (hub.fault or "")


def test_a_judge_that_has_not_changed_is_kept_and_one_that_has_is_made_anew(
    write_hub: WriteHub, tmp_path: Path
) -> None:
    text = f'default = "none"\n{local_table(write_llama(tmp_path / "small.gguf"), context_tokens=512)}'
    hub = write_hub(text)
    with hub.judge("local") as before:
        assert before.evaluate(ask())["status"] == "ok"
        (tmp_path / "judges.toml").write_text(text + '[judges.fake]\nprovider = "mock"\n')
        with hub.judge("local") as again:
            assert again is before
        (tmp_path / "judges.toml").write_text(text.replace("512", "256"))
        with hub.judge("local") as other:
            assert other is not before
            assert other.models()["models"][0]["context_window"] == 256
        # while it is held, what the file no longer has goes on
        assert before.evaluate(ask())["status"] == "ok"
    assert before.evaluate(ask())["code"] == "provider_unavailable"


def test_two_hubs_and_many_threads_do_not_mix(write_hub: WriteHub) -> None:
    hubs = [write_hub(TWO, name="a.toml"), write_hub(TWO.replace("0.1", "0.2").replace("0.9", "0.8"), name="b.toml")]
    wanted = {(0, "low"): 0.1, (0, "high"): 0.9, (1, "low"): 0.2, (1, "high"): 0.8}
    start = threading.Barrier(8)

    def work(number: int) -> int:
        start.wait()
        wrong = 0
        for i in range(50):
            which, name = (number + i) % 2, ("low", "high")[(number + i) // 2 % 2]
            request = ask(provider=name, request_id=f"{number}")
            wrong += noul(hubs[which].evaluate(request)) != wanted[which, name]
        return wrong

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(work, range(8))) == [0] * 8


def test_what_a_caller_raises_while_told_of_progress_is_his_own(write_hub: WriteHub) -> None:
    hub = write_hub(TWO)

    def stop(done: int, total: int) -> None:
        raise KeyError((done, total))

    with pytest.raises(KeyError):
        hub.evaluate(ask(), progress=stop)
    assert hub.evaluate(ask())["status"] == "ok"


def test_the_codes_of_the_contract() -> None:
    kinds = (MissingKey, AttemptTimeout, HttpFailure, TransportFailure, InvalidResponse)
    codes = ["missing_key", "attempt_timeout", "http", "transport", "invalid_response"]
    assert [kind.code for kind in kinds] == codes
    assert all(issubclass(kind, DeciderError) for kind in kinds)
