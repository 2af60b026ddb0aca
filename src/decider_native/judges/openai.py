"""OpenAI's Decisions API, through OpenAI's own library."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from ..errors import InvalidRequest
from ..prompts import DEFAULT_QUESTION
from ..questions import Json, Noul, Question, Score, is_blank
from .answers import Wire
from .errors import AttemptTimeout, InvalidResponse, TransportFailure, http_failure
from .remote import RETRIES, RemoteAnswer, RemoteJudge, missing_extra, read_json

__all__ = ["OpenAIJudge"]

_MAX_QUESTIONS = 400


class OpenAIJudge(RemoteJudge):
    """A judge behind ``/v1/decisions``. Parameters as for `RemoteJudge`.

    What the API has no place for goes where it fits: a noul's criteria into its instructions, a description that is not
    text into JSON text. Nothing is left out.
    """

    def make_client(self, key: str, http_client: Any) -> Any:
        """Return an `AsyncOpenAI`."""
        try:
            from openai import AsyncOpenAI
        except ImportError as error:
            raise missing_extra("openai") from error
        return AsyncOpenAI(
            api_key=key,
            base_url=f"{self.settings.host}/v1",
            timeout=self.settings.attempt_timeout_ms / 1000,
            max_retries=RETRIES,
            http_client=http_client,
        )

    async def close_client(self, client: Any) -> None:
        """Close the client."""
        await client.close()

    async def ask(
        self, client: Any, state: Json, questions: Mapping[str, Question], seconds_left: float | None
    ) -> RemoteAnswer:
        """Ask about one state."""
        if len(questions) > _MAX_QUESTIONS:
            raise InvalidRequest(
                f"has {len(questions)} questions and this API takes {_MAX_QUESTIONS}; split them", field="questions"
            )
        asked = [_question(question) for question in questions.values()]
        with _errors(self.settings.key_env):
            response = await client.decisions.with_raw_response.create(
                model=self.settings.model, input=_input(state), questions=asked
            )
        return _read(read_json(response.content), questions)

    async def fetch_models(self, client: Any) -> dict[str, dict[str, str]]:
        """Names of the models it answers to; the API says no more about them."""
        listing = client.with_options(max_retries=0).models.list()
        with _errors(self.settings.key_env):
            return {model.id: {"description": "", "release_date": ""} async for model in listing}


def _input(state: Json) -> Any:
    return state if isinstance(state, str) else [{"role": "user", "content": [_part(state)]}]


def _part(value: Json) -> Wire:
    return {"type": "input_text", "text": value} if isinstance(value, str) else {"type": "input_json", "data": value}


def _question(question: Question) -> Wire:
    if isinstance(question, Noul):
        described = {end: text for end, text in question.criteria.items() if not is_blank(text)}
        parts = [part for part in (question.instructions, described or None) if not is_blank(part)]
        return {"type": "predicate", "instructions": _content(parts)}
    instructions = _content([DEFAULT_QUESTION if is_blank(question.instructions) else question.instructions])
    if isinstance(question, Score):
        levels = [{"label": _text(level)} for level in question.criteria]
        return {"type": "score", "instructions": instructions, "levels": levels}
    choices = [
        {"value": name} if is_blank(text) else {"value": name, "description": _text(text)}
        for name, text in question.criteria.items()
    ]
    return {"type": "choice", "instructions": instructions, "choices": choices}


def _content(parts: Sequence[Json]) -> Any:
    """Text where it is nothing else, else an array of parts."""
    return parts[0] if len(parts) == 1 and isinstance(parts[0], str) else [_part(part) for part in parts]


def _text(value: Json) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _read(body: Mapping[str, Any], questions: Mapping[str, Question]) -> RemoteAnswer:
    """Put a response into the contract's words; what its answers hold is checked later."""
    try:
        given, model, usage = body["answers"], body["model"], body["usage"]
        tokens = usage["input_tokens"], usage["output_tokens"]
        if type(model) is not str or any(type(count) is not int for count in tokens):
            raise InvalidResponse("model must be text, and the counts of usage integers")
        if len(given) != len(questions):
            raise InvalidResponse(f"{len(questions)} questions were asked and {len(given)} answers came back")
        answers = {
            name: _answer(question, answer) for (name, question), answer in zip(questions.items(), given, strict=True)
        }
    except (KeyError, TypeError, AttributeError) as error:
        raise InvalidResponse(f"the response has not the form of a decision: {error!r}") from None
    return RemoteAnswer(model, answers, *tokens)


def _answer(question: Question, answer: Mapping[str, Any]) -> Wire:
    """One answer in the contract's words. KeyError, TypeError: it has not the API's form."""
    if answer["type"] == "refusal":
        raise InvalidResponse("the model declined to answer a question; ask it otherwise, or ask another judge")
    wanted = {"noul": "predicate"}.get(question.kind, question.kind)
    if answer["type"] != wanted:
        raise InvalidResponse(f"an answer has the type {str(answer['type'])[:60]!r} where {wanted!r} was asked for")
    if isinstance(question, Noul):
        return {"type": "noul", "noul": answer["probability"]}
    listed = answer["probabilities"]
    common = {"type": question.kind, "confidence": answer["confidence"]}
    if isinstance(question, Score):
        labels = [(entry["value"], entry["label"]) for entry in listed]
        if labels != [(i, _text(level)) for i, level in enumerate(question.criteria)]:
            raise InvalidResponse("the levels of a score are not those of its question")
        p = {str(i): entry["probability"] for i, entry in enumerate(listed)}
        legend = {str(i): level for i, level in enumerate(question.criteria)}
        return {**common, "score": answer["score"], "probabilities": p, "legend": legend}
    p = {entry["value"]: entry["probability"] for entry in listed}
    if len(p) != len(listed):
        raise InvalidResponse("an option of a choice has two probabilities")
    return {**common, "choice": answer["choice"], "probabilities": p}


@contextmanager
def _errors(key_env: str | None) -> Iterator[None]:
    """Turn the library's errors into the contract's."""
    import openai

    try:
        yield
    except openai.APITimeoutError as error:
        raise AttemptTimeout(f"no answer in time: {error}") from None
    except openai.APIConnectionError as error:
        raise TransportFailure(f"{error} {error.__cause__ or ''}".strip()) from None
    except openai.APIStatusError as error:
        raise http_failure(error.status_code, error.message, error.response.headers, key_env) from None
    except openai.OpenAIError as error:
        raise InvalidResponse(str(error)) from None
