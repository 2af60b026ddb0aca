"""``decider-native ask``: one question about files."""

from __future__ import annotations

import argparse
import functools
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any

from decider_native.errors import InvalidRequest

from . import tables
from .commands import decider_options, wants_json

if TYPE_CHECKING:
    from decider_native.contract import Judge
    from decider_native.files import FileAnswers
    from decider_native.judges import Hub

__all__ = ["add_judge_options", "add_options", "ask", "open_hub"]


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add files, question and judge; the options of the model and the output come beside them."""
    parser.add_argument("patterns", metavar="FILE", nargs="+", help="path, glob or directory, relative to the root")
    parser.add_argument(
        "-q", "--question", required=True, metavar="TEXT", help="what is asked; it calls a file's text `content`"
    )
    parser.add_argument("--type", choices=("bool", "choice", "score"), default="bool", help="default: bool, yes or no")
    parser.add_argument(
        "--option",
        action="append",
        metavar="NAME[=TEXT]",
        help="an option of a choice and its description, or a level of a score, lowest first; give it several times",
    )
    parser.add_argument("--yes", metavar="TEXT", help="what a yes means")
    parser.add_argument("--no", metavar="TEXT", help="what a no means")
    parser.add_argument("--root", default=".", metavar="DIR", help="nothing outside of it is read (default: .)")
    parser.add_argument("--recursive", action="store_true", help="take the files under a directory at any depth")
    parser.add_argument("--gitignore", action="store_true", help="leave out what .gitignore files say")
    add_judge_options(parser)


def add_judge_options(parser: argparse.ArgumentParser) -> None:
    """Add the choice of a judge."""
    parser.add_argument("--judges", metavar="FILE", help="judges.toml, in place of a model in this process")
    parser.add_argument("--judge", metavar="NAME", help="a judge of that file (default: the file's default)")


def open_hub(arguments: argparse.Namespace) -> Hub | None:
    """Return the judges of the file that is named, if one is."""
    from decider_native.judges import Hub

    if arguments.judges is not None:
        return Hub.from_file(arguments.judges, preload=False)
    if arguments.judge is not None:
        raise InvalidRequest("names a judge of a file; give that file with --judges", field="--judge")
    return None


def ask(arguments: argparse.Namespace) -> int:
    """Print an answer per file, and what was left out."""
    from decider_native.files import FileTools, make_question

    options, levels = None, None
    if arguments.type == "score":
        levels = arguments.option
    elif arguments.option is not None:
        options = _options(arguments.option)
    question = make_question(
        arguments.type, arguments.question, yes=arguments.yes, no=arguments.no, options=options, levels=levels
    )
    tools = FileTools(functools.partial(_judge, arguments), arguments.root)
    result = tools.ask_files(
        arguments.patterns,
        question,
        recursive=arguments.recursive,
        gitignore=arguments.gitignore,
        timeout=arguments.timeout,
    )
    if wants_json(arguments):
        for line in (*result.answers, *result.skipped):
            print(json.dumps(line.to_dict(), ensure_ascii=False, allow_nan=False))
        return 0
    print(_table(result))
    for skip in result.skipped:
        print(f"left out: {tables.clean(skip.path)}: {skip.reason}")
    print(f"\n{tables.clean(result.meta.model)}: {result.meta.usage.input_tokens} tokens, {result.meta.elapsed_ms} ms")
    return 0


@contextmanager
def _judge(arguments: argparse.Namespace) -> Iterator[Judge]:
    """The judge, made when the files are known."""
    if hub := open_hub(arguments):
        with closing(hub), hub.judge(arguments.judge) as judge:
            yield judge
        return
    from decider_native import Decider

    with Decider(arguments.model, **decider_options(arguments)) as decider:
        yield decider.as_judge


def _options(given: Sequence[str]) -> Mapping[str, str | None]:
    options: dict[str, str | None] = {}
    for text in given:
        name, _, description = text.partition("=")
        if name in options:
            raise InvalidRequest(f"names {name!r} twice; give each option its own name", field="--option")
        options[name] = description or None
    return options


def _table(result: FileAnswers) -> str:
    wires: list[dict[str, Any]] = [answer.to_dict() for answer in result.answers]
    if result.type == "bool":
        cells = [(w["path"], "yes" if w["answer"] else "no", w["noul"]) for w in wires]
        return tables.table(("PATH", "ANSWER", "P(YES)"), cells)
    if result.type == "choice":
        choices = [(w["path"], w["choice"], w["probabilities"][w["choice"]], w["confidence"]) for w in wires]
        return tables.table(("PATH", "CHOICE", "P", "CONFIDENCE"), choices)
    legend = result.legend or {}
    scores = [(w["path"], w["score"], w["confidence"], legend[str(w["top"])]) for w in wires]
    return tables.table(("PATH", "SCORE", "CONFIDENCE", "LIKELIEST LEVEL"), scores)
