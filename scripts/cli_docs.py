"""Write docs/cli.md: the help of every command, as the program prints it.

python scripts/cli_docs.py [--check]
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator
from pathlib import Path

PAGE = Path(__file__).resolve().parent.parent / "docs" / "cli.md"
HEAD = """\
# The command line

What `decider-native COMMAND --help` prints. `scripts/cli_docs.py` writes this page, and a test keeps it true.
"""


def render() -> str:
    """Return the page."""
    os.environ.update(COLUMNS="100", NO_COLOR="1")
    from decider_native.cli import build_parser

    sections = (
        f"## {name}\n\n```text\n{text.rstrip()}\n```\n" for name, text in _helps("decider-native", build_parser())
    )
    return "\n".join([HEAD, *sections])


def _helps(name: str, parser: argparse.ArgumentParser) -> Iterator[tuple[str, str]]:
    yield name, parser.format_help()
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for child, subparser in action.choices.items():
                yield from _helps(f"{name} {child}", subparser)


def main() -> int:
    """Write the page, or with --check say whether it is up to date."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--check", action="store_true", help="change nothing; exit with 1 when the page is out of date")
    page = render()
    if not parser.parse_args().check:
        PAGE.parent.mkdir(exist_ok=True)
        PAGE.write_text(page, encoding="utf-8")
        return 0
    if PAGE.is_file() and PAGE.read_text(encoding="utf-8") == page:
        return 0
    print(f"{PAGE} is out of date: run `python scripts/cli_docs.py`", file=sys.stderr)
    return 1


if __name__ == "__main__":
    raise SystemExit(main())
