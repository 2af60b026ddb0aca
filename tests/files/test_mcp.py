"""The server for agents, as the official client of the `mcp` package meets it: real processes, stdio and HTTP."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Literal, TypeVar

import anyio
import httpx2
import jsonschema  # type: ignore[import-untyped]
import pytest
from mcp import Client, StdioServerParameters
from mcp.types import CallToolResult, TextContent, TextResourceContents

from decider_native import Decider
from decider_native.cli import main
from decider_native.files import FileTools, Settings, make_question

from .conftest import SECRET

T = TypeVar("T")
Transport = Literal["stdio", "http"]

OPTIONS = ("--device", "cpu", "--threads", "1", "--context-tokens", "4096")
ASKED = "Does `content` send invoices?"
QUESTIONS: dict[str, dict[str, Any]] = {
    "q": {"type": "noul", "instructions": ASKED},
    "r": {"type": "score", "criteria": ["low", "high"]},
}
NAMES = [
    "ask_decision_file_bool",
    "ask_decision_file_choice",
    "ask_decision_file_score",
    "ask_decision_files",
    "ask_decision_files_pick",
    "ask_decision",
    "ask_decision_ledger",
]


def command(project: Path, *options: str) -> list[str]:
    return [sys.executable, "-m", "decider_native", "mcp", "--root", str(project), *options]


@pytest.fixture
def serve(project: Path, tmp_path: Path) -> Iterator[Callable[..., str]]:
    """Return a function that starts an HTTP server over the project and returns its address."""
    with ExitStack() as stack:

        def start(*options: str) -> str:
            log = tmp_path / "http.log"
            with log.open("wb") as file:
                process = subprocess.Popen(
                    command(project, "--http", "--port", "0", *options), stdout=subprocess.PIPE, stderr=file
                )
            stack.callback(stop, process)
            end = time.monotonic() + 60
            while not (found := re.search(r"running on (http://\S+)", log.read_text())):
                assert process.poll() is None, log.read_text()
                assert time.monotonic() < end
                time.sleep(0.02)
            return f"{found[1]}/mcp"

        def stop(process: subprocess.Popen[bytes]) -> None:
            process.send_signal(signal.SIGTERM)
            out, _ = process.communicate(timeout=60)
            assert (process.returncode, out) == (0, b"")

        yield start


@pytest.fixture
def transport() -> Transport:
    """How the client speaks to the server."""
    return "stdio"


over_both = pytest.mark.parametrize("transport", ["stdio", "http"])


@pytest.fixture
def connect(transport: Transport, project: Path, tiny_path: Path, serve: Callable[..., str]) -> Callable[..., Any]:
    """Return a function that runs a coroutine function with a client connected to a server of its own."""

    def run(body: Callable[[Client], Awaitable[T]], *options: str) -> T:
        options = (*OPTIONS, "--model", str(tiny_path), *options)
        target: StdioServerParameters | str
        if transport == "http":
            target = serve(*options)
        else:
            executable, *arguments = command(project, *options)
            target = StdioServerParameters(command=executable, args=arguments)

        async def session() -> T:
            async with Client(target) as client:
                return await body(client)

        return asyncio.run(session())

    return run


def text(result: CallToolResult) -> str:
    (content,) = result.content
    assert isinstance(content, TextContent)
    return content.text


@over_both
def test_every_tool_is_listed_described_and_called(connect: Callable[..., Any], project: Path, tiny_path: Path) -> None:
    options = [{"name": "code", "description": "a program"}, {"name": "prose"}]
    calls: dict[str, dict[str, Any]] = {
        "ask_decision_file_bool": {"path": "src/app.py", "question": ASKED, "yes": "it does"},
        "ask_decision_file_choice": {"path": "src/app.py", "question": "What?", "options": options},
        "ask_decision_file_score": {"path": "README.md", "question": "How?", "levels": ["bad", "good"]},
        "ask_decision_files": {
            "patterns": ["src", "*.md"],
            "question_type": "choice",
            "question": "What?",
            "options": options,
            "recursive": True,
        },
        "ask_decision_files_pick": {
            "question": "Which?",
            "candidates": [{"path": "README.md"}, {"path": "src/app.py", "note": "the program"}, {"path": "no"}],
        },
        "ask_decision": {
            "questions_json": json.dumps(QUESTIONS),
            "state": {"who": ["me"]},
            "paths": ["README.md", "src/empty.py"],
        },
        "ask_decision_ledger": {},
    }

    async def body(client: Client) -> tuple[Any, dict[str, Any]]:
        tools = (await client.list_tools()).tools
        results = {name: await client.call_tool(name, arguments) for name, arguments in calls.items()}
        (resource,) = (await client.list_resources()).resources
        (contents,) = (await client.read_resource(resource.uri)).contents
        assert isinstance(contents, TextResourceContents)
        assert json.loads(contents.text) == results["ask_decision_ledger"].structured_content
        assert contents.mime_type == "application/json"
        assert "never into your context" in (client.instructions or "")
        return tools, results

    tools, results = connect(body)
    assert [tool.name for tool in tools] == NAMES
    for tool in tools:
        jsonschema.Draft202012Validator.check_schema(tool.input_schema)
        jsonschema.Draft202012Validator.check_schema(tool.output_schema)
        jsonschema.validate(calls[tool.name], tool.input_schema)
        assert len(tool.description) > 40
        assert all(argument["description"] for argument in tool.input_schema["properties"].values())
        hints = tool.annotations
        assert (hints.read_only_hint, hints.destructive_hint, hints.open_world_hint) == (True, False, False)
        result = results[tool.name]
        assert not result.is_error, text(result)
        jsonschema.validate(result.structured_content, tool.output_schema)
        assert json.loads(text(result)) == result.structured_content
        assert SECRET not in text(result)

    with Decider(tiny_path, device="cpu", threads=1, context_tokens=4096) as decider:
        ours = FileTools(decider.as_judge, project, settings=Settings())
        described = {"code": "a program", "prose": None}
        expected = {
            "ask_decision_file_bool": ours.ask_file_bool("src/app.py", ASKED, yes="it does"),
            "ask_decision_file_choice": ours.ask_file_choice("src/app.py", "What?", described),
            "ask_decision_file_score": ours.ask_file_score("README.md", "How?", ["bad", "good"]),
            "ask_decision_files": ours.ask_files(
                ["src", "*.md"], make_question("choice", "What?", options=described), recursive=True
            ),
            "ask_decision_files_pick": ours.pick_file(
                "Which?", {"README.md": None, "src/app.py": "the program", "no": None}
            ),
            "ask_decision": ours.ask(QUESTIONS, state={"who": ["me"]}, paths=["README.md", "src/empty.py"]),
        }
    for name, result in expected.items():
        wire, got = result.to_dict(), results[name].structured_content
        assert got["meta"].pop("elapsedMs") >= 0
        del wire["meta"]["elapsedMs"]
        assert got == wire
    counted = results["ask_decision_ledger"].structured_content
    totals = ours.ledger.totals()
    assert (counted["calls"], counted["questions"]) == (6, totals.questions)
    assert counted["input_tokens"] == totals.input_tokens
    assert counted["line"].startswith(f"6 decision calls, {totals.questions} questions, ")


ERRORS: list[tuple[str, dict[str, Any], str]] = [
    ("ask_decision_file_bool", {"path": "nowhere", "question": "?"}, "nowhere: not_found: there is no such file"),
    ("ask_decision_file_bool", {"path": "src", "question": "?"}, "src: not_a_file: is no regular file"),
    ("ask_decision_file_bool", {"path": "src/zeros.dat", "question": "?"}, "src/zeros.dat: binary: holds a NUL"),
    ("ask_decision_file_bool", {"path": "src/blank.py", "question": "?"}, "src/blank.py: empty: holds nothing but"),
    ("ask_decision_file_bool", {"path": "x" * 300, "question": "?"}, "unreadable: cannot be read: File name too long"),
    ("ask_decision_file_bool", {"path": "huge.txt", "question": "?"}, "huge.txt: too_large: has 10000000000 bytes"),
    ("ask_decision_file_bool", {"path": "long.txt", "question": "?"}, "long.txt: too_large: has 5"),
    ("ask_decision_file_bool", {"path": "escape/secret.txt", "question": "?"}, "lies outside the project root"),
    ("ask_decision_file_bool", {"path": "README.md", "question": ""}, "field 'instructions': asks nothing"),
    ("ask_decision_file_bool", {"path": "README.md", "question": "long " * 5000}, "the question alone has 50"),
    ("ask_decision_file_bool", {"path": "README.md"}, "Field required"),
    ("ask_decision_file_bool", {"path": "README.md", "question": "?", "maybe": "?"}, "Extra inputs are not permitted"),
    ("ask_decision_file_choice", {"path": "README.md", "question": "?", "options": []}, "field 'options': needs at"),
    (
        "ask_decision_file_choice",
        {"path": "README.md", "question": "?", "options": [{"name": "a"}, {"name": "a"}]},
        "field 'options': names 'a' twice",
    ),
    ("ask_decision_file_score", {"path": "README.md", "question": "?", "levels": ["a"]}, "needs 2 to 10 levels, got 1"),
    (
        "ask_decision_files",
        {"patterns": ["src/empty.py", "*.rs"], "question_type": "bool", "question": "?"},
        "no file can be asked about (src/empty.py: empty, *.rs: not_found)",
    ),
    (
        "ask_decision_files",
        {"patterns": ["*.md"], "question_type": "score", "question": "?", "yes": "y"},
        "field 'yes': is not for a score question",
    ),
    ("ask_decision_files", {"patterns": ["*.md"], "question_type": "noul", "question": "?"}, "'bool', 'choice' or"),
    ("ask_decision_files_pick", {"question": "?", "candidates": []}, "needs 1 to 254 paths, got 0"),
    (
        "ask_decision_files_pick",
        {"question": "?", "candidates": [{"path": "a"}] * 2},
        "field 'candidates': names 'a' twice",
    ),
    ("ask_decision", {"questions_json": "{", "state": "x"}, "questions_json: line 1 column 2"),
    ("ask_decision", {"questions_json": "[]", "state": "x"}, "field 'questions'"),
    ("ask_decision", {"questions_json": '{"q": {"type": "bool"}}', "state": "x"}, "question 'q', field 'type'"),
    ("ask_decision", {"questions_json": json.dumps(QUESTIONS)}, "give a note, files or both"),
    (
        "ask_decision",
        {"questions_json": json.dumps(QUESTIONS), "paths": ["long.txt", "README.md"]},
        "no call can take long.txt",
    ),
    ("ask_decision", {"questions_json": json.dumps(QUESTIONS), "paths": ["a"] * 21}, "names 21 files; one state"),
    ("no_such_tool", {}, "no_such_tool"),
]


@over_both
def test_every_error_arrives_with_its_message(connect: Callable[..., Any], project: Path) -> None:
    (project / "long.txt").write_text("word " * 5000)
    with (project / "huge.txt").open("wb") as file:
        file.truncate(10**10)

    async def body(client: Client) -> list[CallToolResult]:
        return [await client.call_tool(name, arguments) for name, arguments, _ in ERRORS]

    for (name, arguments, message), result in zip(ERRORS, connect(body), strict=True):
        assert result.is_error, (name, arguments)
        assert message in text(result), (name, arguments)
        assert "word word" not in text(result)


@over_both
def test_a_call_that_the_agent_cancels_is_stopped(connect: Callable[..., Any], project: Path) -> None:
    for i in range(40):
        (project / f"long{i}.txt").write_text(f"{i} " + "word " * 3000)
    many = {"patterns": ["long*.txt"], "question_type": "bool", "question": ASKED}
    one = {"path": "README.md", "question": ASKED}

    async def body(client: Client) -> Any:
        await client.call_tool("ask_decision_file_bool", one)  # the model is loaded
        with anyio.move_on_after(1) as scope:
            await client.call_tool("ask_decision_files", many)
        assert scope.cancelled_caught
        await client.call_tool("ask_decision_file_bool", one)  # answered after the other, had that gone on
        return await client.call_tool("ask_decision_ledger", {})

    assert connect(body).structured_content["calls"] == 2


@over_both
def test_a_judge_of_a_file_answers_and_tells_its_progress(
    connect: Callable[..., Any], project: Path, tmp_path: Path
) -> None:
    judges = tmp_path / "judges.toml"
    judges.write_text('default = "none"\n[judges.sure]\nprovider = "mock"\nanswers = { answer = 0.75 }\n')
    told = []

    async def tell(progress: float, total: float | None, message: str | None) -> None:
        told.append((progress, total))

    async def body(client: Client) -> CallToolResult:
        arguments = {"patterns": ["src/app.py", "src/billing.py", "*.md"], "question_type": "bool", "question": ASKED}
        return await client.call_tool("ask_decision_files", arguments, progress_callback=tell)

    result = connect(body, "--judges", str(judges), "--judge", "sure")
    assert [answer["noul"] for answer in result.structured_content["answers"]] == [0.75] * 4
    assert result.structured_content["meta"]["provider"] == "sure"
    assert told == [(i, 4) for i in range(1, 5)]


def test_no_judge_is_an_error_of_its_own(connect: Callable[..., Any], tmp_path: Path) -> None:
    judges = tmp_path / "judges.toml"
    judges.write_text('default = "none"\n[judges.sure]\nprovider = "mock"\n')

    async def body(client: Client) -> CallToolResult:
        return await client.call_tool("ask_decision_file_bool", {"path": "README.md", "question": ASKED})

    refused = connect(body, "--judges", str(judges))
    assert refused.is_error
    assert "no judge" in text(refused)


def test_the_model_is_loaded_by_the_first_call(connect: Callable[..., Any], tmp_path: Path) -> None:
    async def body(client: Client) -> tuple[list[str], CallToolResult]:
        names = [tool.name for tool in (await client.list_tools()).tools]
        return names, await client.call_tool("ask_decision_file_bool", {"path": "README.md", "question": ASKED})

    names, refused = connect(body, "--model", str(tmp_path / "nowhere.gguf"))
    assert names == NAMES
    assert refused.is_error
    assert "the model failed to load" in text(refused)
    assert "nowhere.gguf" in text(refused)


def test_nothing_but_the_protocol_is_on_standard_output(project: Path, tiny_path: Path) -> None:
    process = subprocess.Popen(
        command(project, "--model", str(tiny_path), *OPTIONS, "--verbose"),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    hello = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "by hand", "version": "0"}}
    messages: list[dict[str, Any]] = [
        {"id": 1, "method": "initialize", "params": hello},
        {"method": "notifications/initialized"},
        {
            "id": 2,
            "method": "tools/call",
            "params": {
                "name": "ask_decision_files",
                "arguments": {"patterns": ["src"], "question_type": "bool", "question": ASKED},
            },
        },
    ]
    assert process.stdin
    assert process.stdout
    for message in messages:
        process.stdin.write(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")
        process.stdin.flush()
    lines = [json.loads(process.stdout.readline()) for _ in range(2)]
    out, log = process.communicate(timeout=60)  # standard input ends, and so does the server
    assert (process.returncode, out) == (0, b"")
    assert [(line["jsonrpc"], line["id"]) for line in lines] == [("2.0", 1), ("2.0", 2)]
    assert lines[0]["result"]["serverInfo"]["name"] == "decider-native"
    assert len(lines[1]["result"]["structuredContent"]["answers"]) == 2
    assert b"decider_native.llama" in log
    assert SECRET.encode() not in log
    assert b"Traceback" not in log


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_a_server_that_waits_for_input(project: Path, number: signal.Signals) -> None:
    hello = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "by hand", "version": "0"}}
    message = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": hello}
    with subprocess.Popen(
        command(project), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdin
        assert process.stdout
        assert process.stderr
        process.stdin.write(json.dumps(message).encode() + b"\n")
        process.stdin.flush()
        process.stdout.readline()
        process.send_signal(number)
        try:
            assert process.wait(30) == -number
        finally:
            process.kill()
        assert process.stderr.read() == b""


def test_a_page_of_another_site_cannot_ask(serve: Callable[..., str]) -> None:
    url = serve()
    for headers in ({"host": "evil.example"}, {"origin": "http://evil.example"}):
        response = httpx2.post(url, headers={**headers, "content-type": "application/json"}, json={})
        assert response.status_code in (403, 421)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--root", "nowhere"], "field 'root': nowhere is no directory"),
        (["--judge", "a"], "field '--judge': names a judge of a file"),
        (["--judges", "nowhere.toml"], "nowhere.toml"),
        (["--http", "--port", "65536"], "argument --port: must be an integer from 0 to 65535"),
    ],
)
def test_a_wrong_start_is_said_at_once(capsys: pytest.CaptureFixture[str], arguments: list[str], message: str) -> None:
    assert main(["mcp", *arguments]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert message in err


def test_without_the_extra_the_error_names_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "decider_native.mcp", raising=False)
    monkeypatch.setitem(sys.modules, "mcp.server.mcpserver", None)
    assert main(["mcp"]) == 5
    assert 'pip install "decider-native[mcp]"' in capsys.readouterr().err


def test_the_server_can_be_made_in_a_program(mock_tools: Callable[..., FileTools]) -> None:
    from decider_native.mcp import create_server

    async def session() -> CallToolResult:
        async with Client(create_server(mock_tools({"answer": True}))) as client:
            return await client.call_tool("ask_decision_file_bool", {"path": "README.md", "question": ASKED})

    result = asyncio.run(session())
    assert result.structured_content
    assert result.structured_content["answer"] is True
