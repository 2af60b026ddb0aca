"""The command line: ``decider-native``."""

from __future__ import annotations

import argparse
import io
import logging
import math
import os
import sys
from collections.abc import Sequence
from typing import NoReturn

from decider_native.errors import (
    Cancelled,
    DeadlineExceeded,
    DeciderError,
    InvalidRequest,
    ModelLoadError,
    ModelNotFound,
    PayloadTooLarge,
)

from . import ask, commands, judges, mcp, serve

__all__ = ["build_parser", "main"]

DEBUG_VARIABLE = "DECIDER_NATIVE_DEBUG"

_EXIT_CODES: tuple[tuple[tuple[type[DeciderError], ...], int], ...] = (
    ((InvalidRequest, PayloadTooLarge), 2),
    ((ModelNotFound, ModelLoadError), 3),
    ((DeadlineExceeded, Cancelled), 4),
)
_EPILOG = """\
exit codes:
  0    done
  2    wrong usage, or an invalid request
  3    the model was not found or cannot be loaded
  4    the deadline passed, or the call was cancelled
  5    the backend failed, or has no such device
  130  interrupted
  141  the reader of the output went away

environment:
  DECIDER_NATIVE_GGUF   file that stands for the default model, for machines without a network
  DECIDER_NATIVE_CACHE  directory of this program's own cache
  DECIDER_NATIVE_DEBUG  set to 1: show the traceback of an error
  DECIDER_NATIVE_FILES_*  limits and prices of `ask` and `mcp`, as docs/files.md lists them
  HF_HOME, HF_HUB_OFFLINE, HF_ENDPOINT, HF_TOKEN  as for every client of the Hugging Face Hub
"""
_REQUEST_HELP = "JSON file with {state, questions} or {evaluations: [...]}; - reads standard input"


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """Say what is wrong in one line; the usage is a --help away."""
        self.exit(_fail(f"{message} (see `{self.prog} --help`)", 2))


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code.

    Parameters
    ----------
    argv
        Arguments without the program's name; those of the process by default.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # names that are not Unicode are escaped
            stream.reconfigure(encoding="utf-8", errors="backslashreplace")
    try:
        arguments = build_parser().parse_args(argv)
        if arguments.verbose:
            logging.basicConfig(level=logging.INFO, format="%(name)s: %(message)s", stream=sys.stderr)
        code: int = arguments.run(arguments)
        sys.stdout.flush()
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else 0
    except KeyboardInterrupt:
        return _fail("interrupted", 130)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or the interpreter complains at its end
        return 141
    except Exception as error:
        if os.environ.get(DEBUG_VARIABLE, "0") not in ("", "0"):
            raise
        text = str(error)
        if not isinstance(error, DeciderError | OSError):
            text = f"internal error: {type(error).__name__}: {text} ({DEBUG_VARIABLE}=1 shows where)"
        return _fail(text, next((code for types, code in _EXIT_CODES if isinstance(error, types)), 5))
    return code


def _fail(text: str, code: int) -> int:
    print(f"decider-native: error: {commands.one_line(text)}", file=sys.stderr)
    return code


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of all commands."""
    parser = _Parser(
        prog="decider-native",
        usage="decider-native [--version] COMMAND ...",
        description="Typed decisions from a local language model: exact probabilities, nothing generated.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"decider-native {commands.version()}")
    parser.set_defaults(verbose=False)
    group = parser.add_subparsers(prog=parser.prog, dest="command", metavar="COMMAND", required=True)

    evaluate = _command(group, "evaluate", "answer the questions of a request", "[options] REQUEST", commands.evaluate)
    evaluate.add_argument("request", metavar="REQUEST", help=_REQUEST_HELP)
    _add_model_options(evaluate)
    evaluate.add_argument("--timeout", type=_seconds, metavar="SECONDS", help="give up after so long, loading included")
    evaluate.add_argument("--diagnostics", action="store_true", help="add the x_ fields: label mass, certainty, timing")
    _add_output_options(evaluate, table=True)

    asking = _command(group, "ask", "ask one question about files", "[options] FILE... -q TEXT", ask.ask)
    ask.add_options(asking)
    _add_model_options(asking)
    asking.add_argument("--timeout", type=_seconds, metavar="SECONDS", help="give up after so long, loading apart")
    _add_output_options(asking, table=True)

    rows = _command(group, "rows", "show what the model reads for a request", "[options] REQUEST", commands.rows)
    rows.add_argument("request", metavar="REQUEST", help=_REQUEST_HELP)
    _add_model_options(rows)
    _add_output_options(rows)

    devices = _command(group, "devices", "list the devices a model can run on", "[options]", commands.devices)
    _add_output_options(devices)

    models = _command(group, "models", "list, fetch and find models", "{list,pull,path} ...", None)
    action = models.add_subparsers(prog=models.prog, dest="action", metavar="{list,pull,path}", required=True)
    listing = _command(action, "list", "list the catalogue", "[options]", commands.models_list, "models ")
    _add_output_options(listing)
    pull = _command(
        action, "pull", "fetch a model and print its path", "[options] [NAME]", commands.models_pull, "models "
    )
    path = _command(action, "path", "print a local model's path", "[options] [NAME]", commands.models_path, "models ")
    for command in (pull, path):
        command.add_argument(
            "name", metavar="NAME", nargs="?", help="catalogue name, or hf:owner/repo/file.gguf[@revision]"
        )

    info = _command(group, "info", "load a model and describe it", "[options]", commands.info)
    _add_model_options(info)
    _add_output_options(info)

    judging = _command(group, "judges", "list, try and choose judges", "{list,test,use,none} ...", None)
    action = judging.add_subparsers(prog=judging.prog, dest="action", metavar="{list,test,use,none}", required=True)
    known = _command(action, "list", "list the judges and their state", "[options]", judges.show, "judges ")
    test = _command(action, "test", "ask judges one question each", "[options] [NAME]", judges.test, "judges ")
    test.add_argument("name", metavar="NAME", nargs="?", help="a judge (default: all of them)")
    test.add_argument(
        "--timeout-ms",
        type=_positive,
        default=60_000,
        metavar="N",
        help="time for each, loading included (default: 60000)",
    )
    use = _command(action, "use", "make a judge the default", "[options] NAME", judges.choose, "judges ")
    use.add_argument("name", metavar="NAME", help="a judge, or none")
    nobody = _command(action, "none", "let no judge be the default", "[options]", judges.choose, "judges ")
    nobody.set_defaults(name="none")
    for command in (known, test, use, nobody):
        judges.add_file_option(command)
    for command in (known, test):
        _add_output_options(command)

    serving = _command(group, "serve", "answer TypeSafe, OpenAI and judge clients over HTTP", "[options]", serve.serve)
    _add_model_options(serving)
    serve.add_options(serving)

    agents = _command(group, "mcp", "offer the file tools to agents (MCP)", "[options]", mcp.mcp)
    mcp.add_options(agents)
    _add_model_options(agents)
    return parser


def _command(
    group: argparse._SubParsersAction[_Parser],
    name: str,
    summary: str,
    usage: str,
    run: commands.Command | None,
    parent: str = "",
) -> _Parser:
    parser = group.add_parser(
        name,
        usage=f"decider-native {parent}{name} {usage}",
        help=summary,
        description=f"{summary[0].upper()}{summary[1:]}.",
        allow_abbrev=False,
    )
    if run is not None:
        parser.add_argument("-v", "--verbose", action="store_true", help="show the log on standard error")
        parser.set_defaults(run=run)
    return parser


def _add_model_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--model", metavar="NAME", help="catalogue name, .gguf file or hf:owner/repo/file.gguf (default: decider-4b-v2)"
    )
    parser.add_argument("--config", metavar="FILE", help="decider_config.json to read the model with")
    parser.add_argument(
        "--device", default="auto", metavar="NAME", help="auto, cpu, a backend, or a name from `devices`"
    )
    parser.add_argument("--gpu-layers", type=_count, metavar="N", help="layers on the GPU; 0: none (default: all)")
    parser.add_argument(
        "--no-self-check",
        dest="self_check",
        action="store_false",
        help="use a GPU without comparing it with the CPU first",
    )
    parser.add_argument(
        "--threads", type=_positive, metavar="N", help="CPU threads (default: the usable cores, up to 8)"
    )
    parser.add_argument(
        "--context-tokens", type=_positive, default=16384, metavar="N", help="longest row in tokens (default: 16384)"
    )
    parser.add_argument(
        "--layout",
        choices=("plain", "chat", "schema_first"),
        help="chat: ask a stock instruct model through its chat template; schema_first: questions before the state",
    )
    parser.add_argument(
        "--mode", choices=("auto", "exact", "fast"), default="auto", help="exact: answers never depend on the batch"
    )


def _add_output_options(parser: argparse.ArgumentParser, table: bool = False) -> None:
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="print JSON" + (", the default in a pipe" if table else ""))
    if table:
        form.add_argument("--table", action="store_true", help="print a table, the default on a terminal")


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"must be a number of seconds > 0, got {text!r}")
    return value


def _count(text: str) -> int:
    return _integer(text, 0)


def _positive(text: str) -> int:
    return _integer(text, 1)


def _integer(text: str, least: int) -> int:
    try:
        value = int(text)
    except ValueError:
        value = least - 1
    if not least <= value < 1 << 31:
        raise argparse.ArgumentTypeError(f"must be an integer >= {least}, got {text!r}")
    return value
