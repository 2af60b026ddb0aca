"""``decider-native serve``: the HTTP server."""

from __future__ import annotations

import argparse
import ipaddress
import logging
import signal
import sys
from typing import Any

from decider_native.errors import DeciderError, InvalidRequest

from .commands import decider_options, port

__all__ = ["add_options", "log_to_stderr", "run_app", "serve"]

_MISSING = 'the server needs more packages; run `pip install "decider-native[server]"`'


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of the server; those of the model come beside them."""
    parser.add_argument("--host", default="127.0.0.1", metavar="ADDRESS", help="where to listen (default: 127.0.0.1)")
    parser.add_argument("--port", type=port, default=8000, metavar="N", help="port; 0 takes a free one (default: 8000)")
    parser.add_argument(
        "--api-key-env",
        action="append",
        default=[],
        metavar="NAME",
        help="environment variable with a key that clients must send; give it again for more keys",
    )
    parser.add_argument("--insecure", action="store_true", help="listen beyond this machine although no key is needed")
    parser.add_argument(
        "--parallel-calls", type=int, default=8, metavar="N", help="requests at the model at once (default: 8)"
    )
    parser.add_argument("--max-queue", type=int, default=256, metavar="N", help="requests that may wait (default: 256)")
    parser.add_argument(
        "--max-request-bytes", type=int, default=8_388_608, metavar="N", help="largest body (default: 8 MiB)"
    )
    parser.add_argument(
        "--max-timeout-ms", type=int, default=300_000, metavar="N", help="longest a request may take (default: 300000)"
    )
    parser.add_argument(
        "--body-timeout", type=float, default=30, metavar="SECONDS", help="time for a body to arrive (default: 30)"
    )
    parser.add_argument("--strict-models", action="store_true", help="answer to the model's own names only")
    parser.add_argument(
        "--idle-unload", type=float, metavar="MINUTES", help="free the model after so long without a request"
    )
    parser.add_argument("--preload", action="store_true", help="load the model at once, not on the first request")
    parser.add_argument(
        "--judges", metavar="FILE", help="a judges.toml, whose default judge answers the /v1/judge routes"
    )
    parser.add_argument("--log-content", action="store_true", help="put what is asked in the access log")
    parser.add_argument(
        "--drain-timeout",
        type=int,
        default=60,
        metavar="SECONDS",
        help="time at the end for accepted requests (default: 60)",
    )


def serve(arguments: argparse.Namespace) -> int:
    """Serve until SIGTERM or SIGINT, then finish what was accepted."""
    try:
        import uvicorn  # noqa: F401 - found missing before anything is done

        from decider_native.server import Settings, create_app
        from decider_native.server.auth import keys_from_environment
    except ModuleNotFoundError as error:
        raise DeciderError(f"{_MISSING} (there is no {error.name})") from None
    keys = keys_from_environment(arguments.api_key_env)
    if not keys and not arguments.insecure and not _is_loopback(arguments.host):
        raise InvalidRequest(
            f"without a key anyone who reaches {arguments.host} could use this server; give --api-key-env, listen on "
            "127.0.0.1, or say --insecure",
            field="--host",
        )
    app = create_app(
        Settings(
            model=arguments.model,
            decider=decider_options(arguments),
            keys=keys,
            strict_models=arguments.strict_models,
            preload=arguments.preload,
            idle_unload_seconds=None if arguments.idle_unload is None else 60 * arguments.idle_unload,
            parallel_calls=arguments.parallel_calls,
            body_timeout_seconds=arguments.body_timeout,
            max_queue=arguments.max_queue,
            max_request_bytes=arguments.max_request_bytes,
            max_timeout_ms=arguments.max_timeout_ms,
            log_content=arguments.log_content,
            judges=arguments.judges,
        )
    )
    log_to_stderr(arguments.verbose)
    run_app(
        app,
        host=arguments.host,
        port=arguments.port,
        http="h11",  # it bounds the size of headers; httptools does not
        ws="none",
        server_header=False,
        timeout_graceful_shutdown=arguments.drain_timeout,
    )
    return 0


def log_to_stderr(verbose: bool) -> None:
    """Show the log of a command that goes on until it is told to end; llama.cpp's own lines only when verbose."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s: %(message)s", stream=sys.stderr)
    if not verbose:
        logging.getLogger("decider_native.llama").setLevel(logging.WARNING)


def run_app(app: Any, **options: Any) -> None:
    """Run an ASGI app with uvicorn and its `options` until a signal ends it."""
    import uvicorn

    signal.signal(signal.SIGTERM, lambda *_: None)  # uvicorn raises it again when all is done; that is no failure
    uvicorn.run(app, access_log=False, log_config=None, **options)  # the app has its own access log, if any


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
