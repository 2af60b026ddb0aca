"""llama.cpp behind decider_native.engine; import that module instead."""

from collections.abc import Callable
from typing import Annotated

import numpy
from numpy.typing import NDArray


class DeviceInfo:
    """A device that a loaded backend module offers."""

    @property
    def name(self) -> str: ...

    @property
    def description(self) -> str: ...

    @property
    def kind(self) -> str: ...

    @property
    def backend(self) -> str: ...

    @property
    def memory_free(self) -> int: ...

    @property
    def memory_total(self) -> int: ...

class ModuleInfo:
    """A backend module of the package, in use or not."""

    @property
    def file(self) -> str: ...

    @property
    def backend(self) -> str: ...

    @property
    def reason(self) -> str: ...

class KeptContext:
    """A context's state. Calls start from it for as long as it is held."""

    @property
    def bytes(self) -> int: ...

class Evaluation:
    """What one call read."""

    @property
    def logits(self) -> Annotated[NDArray[numpy.float32], dict(shape=(None,))]:
        """Label logits of all rows, float32."""

    @property
    def log_normalizers(self) -> Annotated[NDArray[numpy.float64], dict(shape=(None,))]:
        """Per row, log of the sum of exp over the whole vocabulary, float64."""

    @property
    def decoded_tokens(self) -> int: ...

    @property
    def padded_tokens(self) -> int: ...

    @property
    def reused_tokens(self) -> int: ...

    @property
    def context(self) -> KeptContext:
        """What pin asked for; None where the model's state cannot be kept."""

class Model:
    """One GGUF file on one device. Immutable and thread-safe."""

    def __init__(self, path: str, device: str, gpu_layers: int | None, exact: bool | None) -> None: ...

    def tokenize(self, text: str, parse_special: bool) -> Annotated[NDArray[numpy.int32], dict(shape=(None,))]: ...

    def detokenize(self, tokens: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)]) -> bytes: ...

    @property
    def labels(self) -> Annotated[NDArray[numpy.int32], dict(shape=(None,))]: ...

    @property
    def metadata(self) -> dict[str, str]: ...

    @property
    def chat_template(self) -> str: ...

    @property
    def description(self) -> str: ...

    @property
    def leading_token(self) -> int | None: ...

    @property
    def vocabulary_size(self) -> int: ...

    @property
    def longest_token_bytes(self) -> int: ...

    @property
    def trained_context(self) -> int: ...

    @property
    def parameters(self) -> int: ...

    @property
    def size_bytes(self) -> int: ...

    @property
    def device(self) -> str: ...

    @property
    def device_description(self) -> str: ...

    @property
    def on_gpu(self) -> bool: ...

    @property
    def exact(self) -> bool: ...

class Engine:
    """One context and the thread that owns it. Thread-safe."""

    def __init__(self, model: Model, threads: int, context_tokens: int, parallel_rows: int | None, context_cache_bytes: int) -> None: ...

    def evaluate(self, tokens: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], row_ends: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], label_counts: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], contexts: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], pin: bool = False, timeout: float | None = None, cancelled: Callable[[], bool] | None = None, progress: Callable[[int, int], None] | None = None) -> Evaluation: ...

    def close(self) -> None: ...

    @property
    def context_tokens(self) -> int: ...

    @property
    def context_cache(self) -> tuple[int, int]:
        """Contexts kept, and their bytes."""

    @property
    def step_tokens(self) -> int: ...

    @property
    def min_step_tokens(self) -> int: ...

    @property
    def sequences(self) -> int: ...

    @property
    def parallel_rows(self) -> int:
        """Most rows that share a decode step."""

    @property
    def parallel_rows_tokens(self) -> int:
        """How long these may be."""

def plan_steps(tokens: NDArray[numpy.int32], row_ends: NDArray[numpy.int64], contexts: NDArray[numpy.int32], *, restored: int, step_tokens: int, min_step_tokens: int, sequences: int, rows_per_step: int, step_cost: int, tile: int) -> list[tuple[object, ...]]:
    """How a call's rows would be decoded; for tests of the planner."""

def devices() -> list[DeviceInfo]: ...

def modules() -> list[ModuleInfo]: ...

def cpu_features() -> list[tuple[str, str]]: ...

def drain_log() -> list[tuple[int, str]]: ...

def set_log_level(level: int) -> None: ...

def quantize(source: str, target: str, type: str) -> None: ...
