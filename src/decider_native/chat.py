"""The chat template of a stock instruct model, rendered to be split around the user's text."""

from __future__ import annotations

from datetime import datetime
from typing import Any, NoReturn

from .errors import ModelLoadError
from .prompts import USER_CONTENT, ChatLayout

__all__ = ["chat_layout"]


def chat_layout(template: str, bos_token: str, eos_token: str) -> ChatLayout:
    """Render a Jinja chat template for one user turn, thinking off, and return the layout around that turn.

    Parameters
    ----------
    template
        Jinja source, as GGUF files carry it.
    bos_token, eos_token
        Texts of the vocabulary's tokens, which templates may use.

    Raises
    ------
    ModelLoadError
        There is no template, jinja2 is not installed, or the template cannot be rendered or split.
    """
    if not template:
        raise ModelLoadError(
            "the chat layout needs a chat template and the model file holds none; "
            "give one with chat_template=, or use the plain layout"
        )
    try:
        from jinja2 import TemplateError
        from jinja2.ext import loopcontrols
        from jinja2.sandbox import ImmutableSandboxedEnvironment
    except ImportError as error:
        raise ModelLoadError('the chat layout needs jinja2; run pip install "decider-native[chat]"') from error

    def refuse(message: str) -> NoReturn:
        raise TemplateError(message)

    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
    environment.globals["raise_exception"] = refuse
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    variables: dict[str, Any] = {
        "messages": [{"role": "user", "content": USER_CONTENT}],
        "add_generation_prompt": True,
        "enable_thinking": False,
        "bos_token": bos_token,
        "eos_token": eos_token,
    }
    try:
        rendered = environment.from_string(template).render(variables)
    except (TemplateError, TypeError, ValueError) as error:
        raise ModelLoadError(
            f"the model's chat template cannot be rendered: {error}; give another with chat_template="
        ) from error
    return ChatLayout.from_rendered(rendered)
