"""The file tools for agents: a server of the Model Context Protocol."""

from __future__ import annotations

import asyncio
import functools
import inspect
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import asynccontextmanager
from importlib.metadata import version
from typing import Annotated, Any

from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.server.mcpserver.tools import Tool
from mcp.types import CallToolResult, TextContent, ToolAnnotations
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from .errors import DeciderError, InvalidRequest
from .files import Answers, FileAnswers, FileBool, FileChoice, FilePick, FileScore, FileTools, Totals, make_question
from .files.results import QuestionType, Result
from .progress import Progress
from .strict_json import loads

__all__ = ["LEDGER_URI", "create_server"]

LEDGER_URI = "decider://ledger"

_INSTRUCTIONS = """\
Typed questions about files, answered by a small decision model. The text of a file goes to the model and never into \
your context: you get the answer, with probabilities. Use these tools to triage, classify and rate files you need not \
read yourself. A question is one short sentence with one judgement; call the text of a file `content`, in backticks. \
Paths are relative to the project root. A state that does not fit is refused with the sizes and a split that fits; \
nothing is cut."""

_READ_ONLY = ToolAnnotations(read_only_hint=True, destructive_hint=False, idempotent_hint=True, open_world_hint=False)

FilePath = Annotated[str, Field(description="File, relative to the project root.")]
AskedText = Annotated[
    str, Field(description="One short question with one judgement; it calls the file's text `content`, in backticks.")
]
Yes = Annotated[str | None, Field(description="What a yes means, where that is not plain.")]
No = Annotated[str | None, Field(description="What a no means, where that is not plain.")]
Levels = Annotated[list[str], Field(description="2 to 10 descriptions, lowest level first.")]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid")


class Option(_Strict):
    """An option to choose."""

    name: Annotated[str, Field(description="Short name, which the answer repeats.")]
    description: Annotated[str | None, Field(description="When this option is the right one.")] = None


class Candidate(_Strict):
    """A file to pick."""

    path: FilePath
    note: Annotated[str | None, Field(description="What is worth knowing about the file.")] = None


Options = Annotated[
    list[Option],
    Field(description="What to choose from. 'other' joins them unless one is called other, none or none_of_the_above."),
]


def create_server(tools: FileTools) -> MCPServer[Any]:
    """A server whose tools ask through `tools`; run it with its own `run`, or mount its `streamable_http_app`."""
    server: MCPServer[Any] = MCPServer(
        "decider-native",
        instructions=_INSTRUCTIONS,
        version=version("decider-native"),
        tools=[_tool(function) for function in _functions(tools)],
    )

    @server.resource(LEDGER_URI, name="ledger", title="Decision ledger", mime_type="application/json")
    def ledger() -> str:
        """What the decision calls have cost so far."""
        return json.dumps(tools.ledger.totals().to_dict())

    return server


def _functions(tools: FileTools) -> list[Callable[..., Awaitable[Result]]]:
    async def ask_decision_file_bool(path: FilePath, question: AskedText, yes: Yes = None, no: No = None) -> FileBool:
        """Ask a yes/no question about one file without reading it.

        Returns the answer and noul, the probability of yes.
        """
        return await tools.aask_file_bool(path, question, yes=yes, no=no)

    async def ask_decision_file_choice(path: FilePath, question: AskedText, options: Options) -> FileChoice:
        """Ask which of several options fits one file without reading it.

        Returns the choice, a confidence (0 to 1) and the probability of every option.
        """
        return await tools.aask_file_choice(path, question, _described(options))

    async def ask_decision_file_score(path: FilePath, question: AskedText, levels: Levels) -> FileScore:
        """Rate one file on a scale of described levels without reading it.

        Returns the expected level as score, the likeliest level as top, and normalized, the score from 0 to 1.
        """
        return await tools.aask_file_score(path, question, levels)

    async def ask_decision_files(
        ctx: Context,
        patterns: Annotated[
            list[str],
            Field(description="Paths, globs (`src/*.py`, `**/*.md`) or directories (the files directly in them)."),
        ],
        question_type: Annotated[
            QuestionType, Field(description="bool: yes or no. choice: give options. score: give levels.")
        ],
        question: AskedText,
        yes: Yes = None,
        no: No = None,
        options: Annotated[list[Option] | None, Field(description="For a choice: what to choose from.")] = None,
        levels: Annotated[list[str] | None, Field(description="For a score: 2 to 10 levels, lowest first.")] = None,
        recursive: Annotated[bool, Field(description="Take the files under a directory at any depth.")] = False,
        gitignore: Annotated[bool, Field(description="Leave out what .gitignore files say.")] = False,
    ) -> FileAnswers:
        """Ask the same question about many files, 255 at most, without reading them.

        Returns an answer per file. Files that cannot be asked about (binary, empty, too large, outside the root, in
        node_modules, .git, dist, build, coverage and the like) are in skipped, with the reason.
        """
        described = None if options is None else _described(options)
        asked = make_question(question_type, question, yes=yes, no=no, options=described, levels=levels)
        async with _reporting(ctx) as progress:
            return await tools.aask_files(patterns, asked, recursive=recursive, gitignore=gitignore, progress=progress)

    async def ask_decision_files_pick(
        question: Annotated[str, Field(description="What the file you look for is or does.")],
        candidates: Annotated[list[Candidate], Field(description="The files to pick from; all are read together.")],
    ) -> FilePick:
        """Ask which of several files fits a question best, without reading them; path is null when none does."""
        notes = _by_name("candidates", [(candidate.path, candidate.note) for candidate in candidates])
        return await tools.apick_file(question, notes)

    async def ask_decision(
        questions_json: Annotated[
            str,
            Field(
                description="JSON object of question ids to questions: "
                '{"id": {"type": "noul", "instructions": "...?"}}, '
                '{"type": "choice", "instructions": "...?", "criteria": {"name": "description"}} or '
                '{"type": "score", "instructions": "...?", "criteria": ["lowest", "highest"]}. '
                'A question may call parts of the state by name: `text`, a field, `files["path"]`.'
            ),
        ],
        state: Annotated[
            str | dict[str, Any] | list[Any] | None,
            Field(description="A short note on the situation, text or JSON; a quarter of what fits at most."),
        ] = None,
        paths: Annotated[list[str] | None, Field(description="Up to 20 files, which you need not read.")] = None,
    ) -> Answers:
        """Ask several typed questions about one situation: a note, files, or both.

        Returns an answer per question id, and what the state was made of. A noul answer is the probability of yes.
        """
        return await tools.aask(loads(questions_json, "questions_json"), state=state, paths=paths or ())

    async def ask_decision_ledger() -> Totals:
        """Tell what the decision calls have cost so far: calls, questions, tokens, time and, where priced, money."""
        return tools.ledger.totals()

    return [
        ask_decision_file_bool,
        ask_decision_file_choice,
        ask_decision_file_score,
        ask_decision_files,
        ask_decision_files_pick,
        ask_decision,
        ask_decision_ledger,
    ]


def _tool(function: Callable[..., Awaitable[Result]]) -> Tool:
    """A tool whose output schema is that of the function's result, and whose errors keep their messages."""

    @functools.wraps(function)
    async def call(**arguments: Any) -> CallToolResult:
        try:
            wire = (await function(**arguments)).to_dict()
        except DeciderError as error:
            raise ToolError(str(error)) from error
        text = TextContent(type="text", text=json.dumps(wire, ensure_ascii=False, allow_nan=False))
        return CallToolResult(content=[text], structured_content=wire)

    tool = Tool.from_function(
        call, description=inspect.getdoc(function), annotations=_READ_ONLY, structured_output=False
    )
    # arguments that are not known are refused, as everywhere in this package
    known = tool.fn_metadata.arg_model
    tool.fn_metadata.arg_model = type(known.__name__, (known,), {"model_config": ConfigDict(extra="forbid")})
    tool.parameters = tool.fn_metadata.arg_model.model_json_schema()
    result = inspect.signature(function, eval_str=True).return_annotation
    tool.fn_metadata.output_schema = TypeAdapter(result).json_schema(mode="serialization")
    return tool


def _described(options: Sequence[Option]) -> Mapping[str, str | None]:
    return _by_name("options", [(option.name, option.description) for option in options])


def _by_name(field: str, described: Sequence[tuple[str, str | None]]) -> Mapping[str, str | None]:
    names: dict[str, str | None] = {}
    for name, description in described:
        if name in names:
            raise InvalidRequest(f"names {name!r} twice; name each once", field=field)
        names[name] = description
    return names


@asynccontextmanager
async def _reporting(ctx: Context) -> AsyncIterator[Progress]:
    """Progress from any thread to the client, if it asked for it; all of it before the answer."""
    loop = asyncio.get_running_loop()
    sent: list[Future[None]] = []

    def report(done: int, total: int) -> None:
        sent.append(asyncio.run_coroutine_threadsafe(ctx.report_progress(done, total), loop))

    yield report
    await asyncio.gather(*map(asyncio.wrap_future, sent), return_exceptions=True)
