"""``decider-native mcp``: the file tools for agents."""

from __future__ import annotations

import argparse
import functools
import signal
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from typing import TYPE_CHECKING

from decider_native.errors import DeciderError

from .ask import add_judge_options, open_hub
from .commands import decider_options, port
from .serve import log_to_stderr, run_app

if TYPE_CHECKING:
    from decider_native.contract import Judge

__all__ = ["add_options", "mcp"]

_MISSING = 'the tools for agents need more packages; run `pip install "decider-native[mcp]"`'
_HOST = "127.0.0.1"  # the protocol has no keys of its own, and whoever asks about files learns about them


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of the tools; those of the model come beside them."""
    parser.add_argument("--root", default=".", metavar="DIR", help="the project: nothing outside is read (default: .)")
    parser.add_argument("--http", action="store_true", help=f"listen on {_HOST}, not on standard input and output")
    parser.add_argument("--port", type=port, default=8001, metavar="N", help="port; 0 takes a free one (default: 8001)")
    add_judge_options(parser)


def mcp(arguments: argparse.Namespace) -> int:
    """Serve until standard input ends, or a signal."""
    try:
        import uvicorn  # noqa: F401 - found missing before anything is done

        from decider_native.mcp import create_server
    except ModuleNotFoundError as error:
        raise DeciderError(f"{_MISSING} (there is no {error.name})") from None
    from decider_native.files import FileTools

    log_to_stderr(arguments.verbose)
    with _judge(arguments) as judge:
        server = create_server(FileTools(judge, arguments.root))
        if not arguments.http:
            # a KeyboardInterrupt would wait for the thread that reads standard input
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            server.run("stdio")
            return 0
        run_app(server.streamable_http_app(host=_HOST), host=_HOST, port=arguments.port)
    return 0


@contextmanager
def _judge(arguments: argparse.Namespace) -> Iterator[Judge | Callable[[], AbstractContextManager[Judge]]]:
    """The judge of every call. A model in this process is loaded on the first and kept: an agent's start is quick."""
    if hub := open_hub(arguments):
        with closing(hub):
            if arguments.judge is not None:
                with hub.judge(arguments.judge):
                    pass  # a wrong name is found out now
            yield functools.partial(hub.judge, arguments.judge)
        return
    from decider_native.judges import DeciderSettings
    from decider_native.judges.local import LocalJudge
    from decider_native.models import DEFAULT_MODEL

    settings = DeciderSettings(
        name="decider", model=arguments.model or DEFAULT_MODEL, options=decider_options(arguments)
    )
    with closing(LocalJudge(settings)) as judge:
        judge.keeper.keep(True, load=False)
        yield judge
