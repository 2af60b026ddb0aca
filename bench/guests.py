"""Other packages that answer the same requests with prompts of their own, each in its own virtual environment."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from guest_program import GUESTS
from peers import LeftOut, last_line

from decider_native.decider import Questions
from decider_native.judges.answers import question_wire

PROGRAM = Path(__file__).with_name("guest_program.py")


class Guest:
    """A package that runs in another process. Calling it asks questions about a state.

    Parameters
    ----------
    name
        One of `GUESTS`.
    python
        The interpreter of the virtual environment in which it is installed.

    Raises
    ------
    LeftOut
        It is not installed there, or does not open the model, or, from a call, does not answer.
    """

    def __init__(self, name: str, python: str, model: Path, threads: int, context_tokens: int) -> None:
        if name not in GUESTS:
            raise LeftOut(f"none of {', '.join(GUESTS)}")
        command = [python, str(PROGRAM), name, *map(str, (model.resolve(), threads, context_tokens))]
        try:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
            )
        except OSError as error:
            raise LeftOut(f"{python} does not start: {error}") from error
        try:
            self._reply()
        except LeftOut:
            self.close()
            raise

    def __call__(self, state: str, questions: Questions) -> dict[str, Any]:
        wires = {name: q if isinstance(q, Mapping) else question_wire(q) for name, q in questions.items()}
        assert self._process.stdin
        try:
            self._process.stdin.write(json.dumps({"state": state, "questions": wires}) + "\n")
            self._process.stdin.flush()
        except OSError as error:
            raise LeftOut(f"it has ended: {error}") from error
        return self._reply()

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.communicate()

    def _reply(self) -> dict[str, Any]:
        assert self._process.stdout
        line = self._process.stdout.readline()
        if not line:
            raise LeftOut(f"its process ended with {self._process.wait()}")
        reply: dict[str, Any] = json.loads(line)
        if "error" in reply:
            raise LeftOut(last_line(reply["error"]))
        return reply
