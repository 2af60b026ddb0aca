"""The way from a model's name or path to a checked file with its readout configuration."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from ..config import ReadoutConfig, config_from_mapping
from ..errors import ConfigError
from . import demo, hub
from .catalogue import CATALOGUE, DEFAULT_MODEL, CatalogueEntry, lookup, unknown
from .hub import CONFIG_NAME, GGUF_VARIABLE
from .weights import check_gguf, verify_sha256

__all__ = ["ConfigSource", "ResolvedModel", "local_path", "pull", "resolve"]

ConfigSource: TypeAlias = "str | os.PathLike[str] | Mapping[str, object]"


@dataclass(frozen=True, slots=True)
class ResolvedModel:
    """A model file that exists, and how to read it.

    Attributes
    ----------
    name
        The catalogue name, or the file's stem.
    path
        The GGUF file.
    config
        Temperatures and layout; None: nothing is known beside the file, and its own metadata decides.
    """

    name: str
    path: Path
    config: ReadoutConfig | None


def resolve(
    model: str | os.PathLike[str] | None = None, *, config: ConfigSource | None = None, download: bool = True
) -> ResolvedModel:
    """Find a model's file and its readout configuration.

    Parameters
    ----------
    model
        A catalogue name or alias; the path of a .gguf file; ``hf:owner/repo/file.gguf[@revision]``; or None for the
        default model. For the default model the environment variable ``DECIDER_NATIVE_GGUF``, when set, names the file.
        A catalogue name wins over a file of the same name: write ``./demo`` for such a file.
    config
        A decider_config.json or its contents. By default the one beside the model file, else what the catalogue knows.
    download
        Whether a file that is not in the Hub's cache may be fetched.

    Raises
    ------
    ModelNotFound
        The name is unknown, the file is missing, or the Hub cannot be reached.
    ModelLoadError
        The file is no usable GGUF, or damaged.
    ConfigError
        The configuration is unusable, or the model needs one and none was found.
    """
    if model is None:
        model = DEFAULT_MODEL
    entry = lookup(model) if isinstance(model, str) else None
    if entry is None:
        path = _local_file(model)
        return ResolvedModel(path.stem, path, _config_for(path, config, None))
    if entry.name == DEFAULT_MODEL and (named := os.environ.get(GGUF_VARIABLE)):
        path = Path(named).expanduser()
        check_gguf(path, f"{GGUF_VARIABLE}={named}")
    else:
        path = _fetch(entry, download=download)
    readout = _config_for(path, config, entry.config)
    if readout is None and entry in CATALOGUE:
        raise ConfigError(
            f"{entry.name}: no {CONFIG_NAME} beside {path}, so its temperatures are unknown; run "
            f"`decider-native models pull {entry.name}` while connected, or give a config"
        )
    return ResolvedModel(entry.name, path, readout)


def pull(model: str = DEFAULT_MODEL) -> Path:
    """Fetch a model into the local cache, or bring an unpinned one up to date, and return its path.

    `model` is a catalogue name or alias, or ``hf:owner/repo/file.gguf[@revision]``. Errors as for `resolve`.
    """
    entry = lookup(model)
    if entry is None:
        raise unknown(model)
    return _fetch(entry, download=True, refresh=entry.revision is None)


def local_path(entry: CatalogueEntry) -> Path | None:
    """Return where an entry's file lies on this machine, or None; asks no network and checks no contents."""
    return demo.cached() if entry.repo_id is None else hub.cached(entry.repo_id, entry)


def _local_file(model: str | os.PathLike[str]) -> Path:
    path = Path(model).expanduser()
    if isinstance(model, str) and not model.lower().endswith(".gguf") and not (model and os.path.exists(path)):
        raise unknown(model)
    check_gguf(path)
    return path


def _config_for(path: Path, config: ConfigSource | None, known: ReadoutConfig | None) -> ReadoutConfig | None:
    if isinstance(config, Mapping):
        return config_from_mapping(config, "config")
    beside = path.parent / CONFIG_NAME
    if config is None and not beside.exists():
        return known
    source = beside if config is None else Path(config).expanduser()
    try:
        data = json.loads(source.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise ConfigError(f"cannot read {source}: {error.strerror}; give a readable {CONFIG_NAME}") from error
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{source} is not JSON: {error}; give a {CONFIG_NAME} as decider-ai writes it") from error
    if not isinstance(data, Mapping):
        raise ConfigError(f"{source} holds no JSON object; give a {CONFIG_NAME} as decider-ai writes it")
    return config_from_mapping(data, str(source))


def _fetch(entry: CatalogueEntry, *, download: bool, refresh: bool = False) -> Path:
    if entry.repo_id is None:
        return demo.assemble()
    path = None if refresh else local_path(entry)
    if path is None:
        if not download:
            raise hub.unavailable(entry)
        path = hub.download(entry.repo_id, entry)
    # The Hub's cache names large files by their sha256; a copy under another name has no digest to compare with.
    blob = path.resolve().name
    expected = entry.sha256 or (blob if re.fullmatch("[0-9a-f]{64}", blob) else None)
    if expected:
        name = entry.name if entry in CATALOGUE else entry.source
        verify_sha256(path, expected, size=entry.size_bytes, remedy=f"run `decider-native models pull {name}`")
    check_gguf(path)
    return path
