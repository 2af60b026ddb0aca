"""A loaded model behind the contract."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from ..errors import PayloadTooLarge
from ..models import find
from ..questions import Json, Question
from .call import Call, Reply
from .judge import Judge, Measure
from .request import Limits

if TYPE_CHECKING:
    from ..decider import Decider

__all__ = ["DeciderJudge"]


class DeciderJudge(Judge):
    """A judge over a `Decider`, which whoever made it closes. Parameters as for `Judge`."""

    def __init__(self, decider: Decider, *, limits: Limits | None = None, provider: str = "decider") -> None:
        super().__init__(provider, limits=limits)
        self._decider = decider
        entry = find(decider.name)
        self._entry = entry if entry and entry.name == decider.name else None

    def answer(self, call: Call) -> Reply:
        """Answer a call in one native call. Errors as for `Decider.evaluate_many`."""
        self.check_served(call, self._decider.name, self._entry.aliases if self._entry else ())
        results = self._decider.evaluate_many(
            _prepared(call), timeout=call.remaining(), cancel=call.cancel, progress=call.progress or False
        )
        wires = (result.to_dict() for result in results)
        return Reply(
            self._decider.name,
            {
                evaluation.id: {key: wire[key] for key in ("answers", "usage")}
                for evaluation, wire in zip(call.evaluations, wires, strict=True)
            },
        )

    def list_models(self) -> list[dict[str, Any]]:
        """The one model that runs here; ``release_date`` is empty, for model files do not tell theirs."""
        facts = self._decider.info()
        return [
            {
                "name": self._decider.name,
                "description": self._entry.summary if self._entry else facts["description"],
                "release_date": "",
                "context_window": facts["context_tokens"],
                "max_options": facts["labels"],
            }
        ]

    def measure(self, state: Json, questions: Mapping[str, Question], call: Call | None = None) -> Measure:
        """As `Judge.measure`, in the model's own tokens. Errors as for `Decider.evaluate`."""
        try:
            return Measure(self._decider.longest_row(state, questions), self._decider.context_tokens)
        except PayloadTooLarge as error:
            return Measure(error.tokens, error.limit)

    def close(self) -> None:
        """Do nothing: the Decider is not the judge's own."""


def _prepared(call: Call) -> Iterator[tuple[Json, dict[str, Question]]]:
    """Evaluations to tokenize one by one, so that the call can stop between them."""
    for evaluation in call.evaluations:
        call.remaining()
        call.current = evaluation.id
        yield evaluation.state, evaluation.questions
        call.current = None
    call.remaining()
    call.requests = sum(evaluation.needs_model() for evaluation in call.evaluations)
    call.attempts = min(1, call.requests)
