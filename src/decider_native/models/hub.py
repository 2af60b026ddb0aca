"""Model files on the Hugging Face Hub: what its cache on this machine holds, and fetching what it lacks."""

from __future__ import annotations

import contextlib
import errno
import fnmatch
from collections.abc import Iterator
from pathlib import Path

from ..errors import DeciderError, ModelLoadError, ModelNotFound
from .catalogue import CATALOGUE, DEFAULT_MODEL, CatalogueEntry

CONFIG_NAME = "decider_config.json"
GGUF_VARIABLE = "DECIDER_NATIVE_GGUF"

_PROBE_SECONDS = 5.0
_DISK_ERRORS = {errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EPERM, errno.EROFS, errno.EFBIG}


def cached(repo_id: str, entry: CatalogueEntry) -> Path | None:
    """Return the entry's file in the Hub's cache, or None; asks no network and checks no contents."""
    from huggingface_hub import constants, try_to_load_from_cache

    revision = entry.revision or "main"
    if not _is_pattern(entry.filename):
        found = try_to_load_from_cache(repo_id, entry.filename, revision=revision)
        return Path(found) if isinstance(found, str) else None
    repo = Path(constants.HF_HUB_CACHE) / f"models--{repo_id.replace('/', '--')}"
    try:
        commit = (repo / "refs" / revision).read_text(encoding="utf-8").strip()
    except OSError:
        return None
    matches = sorted(path for path in (repo / "snapshots" / commit).glob(entry.filename) if path.exists())
    return matches[0] if matches else None


def download(repo_id: str, entry: CatalogueEntry) -> Path:
    """Fetch the entry's file, and the repository's decider_config.json where the entry has no configuration.

    What the cache already holds is not fetched again. The client shows its progress on stderr when that is a terminal.

    Raises
    ------
    ModelNotFound
        The Hub cannot be reached, or has no such file.
    ModelLoadError
        The cache cannot be written.
    """
    from huggingface_hub import HfApi, constants, get_session, hf_hub_download
    from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError

    with _hub_errors(entry):
        # The hub client retries an unreachable host for half a minute; one look first answers at once.
        get_session().head(constants.ENDPOINT, timeout=_PROBE_SECONDS)
        filename = entry.filename
        if _is_pattern(filename):
            names = fnmatch.filter(HfApi().list_repo_files(repo_id, revision=entry.revision), filename)
            filename = _only(names, repo_id, entry)
        if entry.config is None:
            try:
                hf_hub_download(repo_id, CONFIG_NAME, revision=entry.revision)
            except LocalEntryNotFoundError:
                raise
            except EntryNotFoundError:
                pass
        return Path(hf_hub_download(repo_id, filename, revision=entry.revision))


@contextlib.contextmanager
def _hub_errors(entry: CatalogueEntry) -> Iterator[None]:
    from huggingface_hub import constants
    from huggingface_hub import errors as hub

    page = f"{constants.ENDPOINT}/{entry.repo_id}"
    try:
        yield
    except DeciderError:
        raise
    except hub.LocalEntryNotFoundError as error:
        raise unavailable(entry, f"{constants.ENDPOINT} cannot be reached") from error
    except hub.GatedRepoError as error:
        raise ModelNotFound(f"{entry.name}: accept the terms at {page} and log in with `hf auth login`") from error
    except (hub.EntryNotFoundError, hub.RepositoryNotFoundError, hub.RevisionNotFoundError, ValueError) as error:
        raise ModelNotFound(f"{page} has no {entry.source}: check the spelling, or `hf auth login`") from error
    except Exception as error:  # the client raises its HTTP library's errors, and which library depends on its release
        if isinstance(error, OSError) and error.errno in _DISK_ERRORS:
            raise ModelLoadError(
                f"cannot write to {constants.HF_HUB_CACHE}: {error.strerror}; free space there, make it writable, or "
                "set HF_HOME to another directory"
            ) from error
        if isinstance(error, hub.OfflineModeIsEnabled):
            raise unavailable(entry, "HF_HUB_OFFLINE is set") from error
        cause = (str(error) or type(error).__name__).splitlines()[0]
        raise unavailable(entry, f"{constants.ENDPOINT} cannot be used: {cause}") from error


def unavailable(entry: CatalogueEntry, reason: str | None = None) -> ModelNotFound:
    """Return the error for a file that is not here and cannot, or may not, be fetched; with the ways around it."""
    from huggingface_hub import constants

    name = entry.name if entry in CATALOGUE else entry.source
    local = f"set {GGUF_VARIABLE} to the file" if entry.name == DEFAULT_MODEL else "give the path of the file"
    cache = constants.HF_HUB_CACHE
    fault = f"cannot fetch {name} into {cache}: {reason}" if reason else f"{name} is not in {cache}"
    return ModelNotFound(
        f"{fault}; run `decider-native models pull {name}` on a connected machine, or {local}, or "
        '`pip install "decider-native[demo]"` and use the model demo'
    )


def _only(names: list[str], repo_id: str, entry: CatalogueEntry) -> str:
    if len(names) == 1:
        return names[0]
    raise ModelNotFound(
        f"{entry.name}: one file of {repo_id} should match {entry.filename}, found {', '.join(names) or 'none'}; "
        f"name the one to use as hf:{repo_id}/FILE.gguf"
    )


def _is_pattern(filename: str) -> bool:
    return "*" in filename
