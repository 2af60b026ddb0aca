"""Any /v1/systemone server, TypeSafe's included, through TypeSafe's own library."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from ..questions import Json, Question
from .answers import question_wire
from .errors import AttemptTimeout, InvalidResponse, TransportFailure, http_failure
from .remote import RETRIES, RemoteAnswer, RemoteJudge, missing_extra, read_json

__all__ = ["SystemOneJudge"]


class SystemOneJudge(RemoteJudge):
    """A judge behind ``/v1/systemone``. Parameters as for `RemoteJudge`."""

    def make_client(self, key: str, http_client: Any) -> Any:
        """Return an `AsyncTypeSafeClient`."""
        try:
            from typesafe_sdk import AsyncTypeSafeClient
        except ImportError as error:
            raise missing_extra("systemone") from error
        return AsyncTypeSafeClient(
            api_key=key,
            base_url=self.settings.host,
            model=self.settings.model,
            timeout=self.settings.attempt_timeout_ms / 1000,
            http_client=http_client,
        )

    async def close_client(self, client: Any) -> None:
        """Close the client."""
        await client.aclose()

    async def ask(
        self, client: Any, state: Json, questions: Mapping[str, Question], seconds_left: float | None
    ) -> RemoteAnswer:
        """Ask about one state; waits between tries end within the time that is left."""
        from typesafe_sdk import RetryPolicy

        wires = {name: question_wire(question) for name, question in questions.items()}
        retry = RetryPolicy(max_retries=RETRIES, timeout=seconds_left)
        with _errors(self.settings.key_env):
            response = await client.system_one(state, wires, retry=retry)
        answers = read_json(response.raw_http_response.content).get("answers", {})
        usage = response.usage
        if usage.input_tokens is None or usage.output_tokens is None:
            raise InvalidResponse("usage lacks input_tokens or output_tokens")
        return RemoteAnswer(response.model, answers, usage.input_tokens, usage.output_tokens)

    async def fetch_models(self, client: Any) -> dict[str, dict[str, str]]:
        """Names of the models it answers to, with their description and release date."""
        from typesafe_sdk import RetryPolicy

        with _errors(self.settings.key_env):
            listing = await client.models.list(retry=RetryPolicy(max_retries=0))
        return {
            model.name: {"description": model.description, "release_date": model.release_date}
            for model in listing.models
        }


@contextmanager
def _errors(key_env: str | None) -> Iterator[None]:
    """Turn the library's errors into the contract's."""
    import typesafe_sdk

    try:
        yield
    except typesafe_sdk.TypeSafeAPITimeoutError as error:
        raise AttemptTimeout(f"no answer in time: {error}") from None
    except typesafe_sdk.TypeSafeAPIConnectionError as error:
        raise TransportFailure(str(error)) from None
    except typesafe_sdk.TypeSafeAPIResponseValidationError as error:
        raise InvalidResponse(str(error)) from None
    except typesafe_sdk.TypeSafeAPIError as error:
        raise http_failure(error.status, str(error), error.headers, key_env) from None
