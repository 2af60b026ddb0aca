"""The way from a model's name or path to a checked file and its readout configuration."""

from .catalogue import CATALOGUE, DEFAULT_MODEL, CatalogueEntry, find, lookup
from .resolver import ConfigSource, ResolvedModel, local_path, pull, resolve

__all__ = [
    "CATALOGUE",
    "DEFAULT_MODEL",
    "CatalogueEntry",
    "ConfigSource",
    "ResolvedModel",
    "find",
    "local_path",
    "lookup",
    "pull",
    "resolve",
]
