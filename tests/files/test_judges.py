"""The tools over judges that are not a model of this process."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from decider_native import Cancelled, DeadlineExceeded, Decider, Noul, Question
from decider_native.contract import DeciderJudge, JudgeError
from decider_native.files import FileTools, Settings
from decider_native.judges import DeciderSettings, HttpFailure, Hub, RemoteSettings, local
from decider_native.judges.remote import RemoteAnswer, RemoteJudge
from decider_native.questions import Json

from .conftest import ASKED


class Elsewhere(RemoteJudge):
    """A judge that is asked state by state, and fails where the state says so."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(RemoteSettings(name="far", provider="systemone", host="http://h", model="m", **settings))
        self.now = self.most = 0

    def make_client(self, key: str, http_client: Any) -> Any:
        return None

    async def close_client(self, client: Any) -> None:
        pass

    async def ask(
        self, client: Any, state: Json, questions: Mapping[str, Question], seconds_left: float | None
    ) -> RemoteAnswer:
        assert isinstance(state, dict)
        self.now += 1
        self.most = max(self.most, self.now)
        await asyncio.sleep(30 if "sleep" in str(state["content"]) else 0.01)
        self.now -= 1
        if "broken" in str(state["content"]):
            raise HttpFailure("HTTP 500: out of order")
        return RemoteAnswer("m-1", {name: {"type": "noul", "noul": 0.75} for name in questions}, 10, 1)

    async def fetch_models(self, client: Any) -> dict[str, dict[str, str]]:
        return {}


@pytest.fixture
def elsewhere() -> Iterator[Elsewhere]:
    judge = Elsewhere()
    yield judge
    judge.close()


def test_a_judge_elsewhere_is_asked_file_by_file(elsewhere: Elsewhere, project: Path) -> None:
    for i in range(9):
        (project / f"{i}.txt").write_text("broken" if i in (3, 7) else "fine")
    tools = FileTools(elsewhere, project, settings=Settings(concurrency=3))
    told: list[tuple[int, int]] = []
    result = tools.ask_files(["*.txt"], Noul(ASKED), progress=lambda done, total: told.append((done, total)))
    assert [answer.path for answer in result.answers] == [f"{i}.txt" for i in range(9) if i not in (3, 7)]
    assert [(skip.path, skip.reason) for skip in result.skipped] == [("3.txt", "http"), ("7.txt", "http")]
    assert told == [(i, 9) for i in range(1, 10)]
    meta = result.to_dict()["meta"]
    assert (meta["provider"], meta["model"], meta["usage"]) == ("far", "m-1", {"input_tokens": 70, "output_tokens": 7})
    assert (meta["calls"], meta["concurrency"]) == (9, 3)
    assert elsewhere.most <= 3
    for i in range(9):
        (project / f"{i}.txt").write_text("broken")
    with pytest.raises(JudgeError, match=r"http: .*HTTP 500: out of order"):
        tools.ask_files(["*.txt"], Noul(ASKED))


def test_a_cancel_reaches_a_judge_elsewhere(elsewhere: Elsewhere, project: Path) -> None:
    for i in range(9):
        (project / f"{i}.txt").write_text("sleep")
    tools, cancel = FileTools(elsewhere, project, settings=Settings(concurrency=2)), threading.Event()
    threading.Timer(0.3, cancel.set).start()
    with pytest.raises(Cancelled):
        tools.ask_files(["*.txt"], Noul(ASKED), cancel=cancel)
    assert elsewhere.now == 2  # the files that waited for their turn were not sent


def test_what_a_caller_raises_while_told_of_progress_stops_the_others(elsewhere: Elsewhere, project: Path) -> None:
    for i in range(3):
        (project / f"{i}.txt").write_text("sleep" if i else "fine")

    def progress(done: int, total: int) -> None:
        raise RuntimeError("of my own")

    with pytest.raises(RuntimeError, match="of my own"):
        FileTools(elsewhere, project, settings=Settings()).ask_files(["*.txt"], Noul(ASKED), progress=progress)
    assert elsewhere.now == 2  # they did not come to their end


def test_a_tool_does_not_wait_longer_than_it_may_for_a_load(
    project: Path, tiny_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = threading.Event()

    def load(*arguments: Any, **options: Any) -> Decider:
        assert gate.wait(60)
        return Decider(*arguments, **options)

    monkeypatch.setattr(local, "Decider", load)
    judge = local.LocalJudge(
        DeciderSettings(name="here", model=str(tiny_path), options={"device": "cpu", "threads": 1})
    )
    tools, cancel = FileTools(judge, project, settings=Settings()), threading.Event()
    with pytest.raises(DeadlineExceeded, match="while the model was loading"):
        tools.ask_file_bool("README.md", ASKED, timeout=0.05)
    threading.Timer(0.2, cancel.set).start()
    with pytest.raises(Cancelled, match="while the model was loading"):
        tools.ask({"q": Noul(ASKED)}, state="x", cancel=cancel)

    async def cancelled() -> None:
        await asyncio.wait_for(tools.aask_files(["*.md"], Noul(ASKED)), 0.2)

    with pytest.raises(TimeoutError):
        asyncio.run(cancelled())
    gate.set()
    assert tools.ask_file_bool("README.md", ASKED).path == "README.md"
    judge.close()


def test_the_judge_is_looked_up_on_every_call(project: Path, tmp_path: Path) -> None:
    pytest.importorskip("tomlkit")
    file = tmp_path / "judges.toml"
    file.write_text('default = "yes"\n[judges.yes]\nprovider = "mock"\nanswers = { answer = true }\n')
    hub = Hub.from_file(file)
    tools = FileTools(hub.judge, project, settings=Settings())
    assert tools.ask_file_bool("README.md", ASKED).meta.provider == "yes"
    file.write_text('default = "none"\n[judges.yes]\nprovider = "mock"\n')
    with pytest.raises(JudgeError, match="no judge"):
        tools.ask_file_bool("README.md", ASKED)
    hub.close()


def test_a_model_is_asked_for_by_name(judge: DeciderJudge, tiny: Decider, project: Path) -> None:
    tools = FileTools(judge, project, settings=Settings(), model=tiny.name)
    assert tools.ask_file_bool("README.md", ASKED).to_dict()["meta"]["requestedModel"] == tiny.name
    with pytest.raises(JudgeError, match="leave model out"):
        FileTools(judge, project, settings=Settings(), model="another").ask_file_bool("README.md", ASKED)
