"""Files that are no usable model: each is refused with a reason, none ends the process or gives made-up answers."""

from __future__ import annotations

import math
import os
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import gguf
import pytest

from decider_native import BackendError, Choice, Decider, InvalidRequest, ModelLoadError, ModelNotFound, Noul
from decider_native.engine import Engine, quantize
from small_gguf import PLAIN, write_bert, write_llama

QUESTION = {"q": Noul("is it?")}


def open_both(path: Path, error: type[Exception], message: str) -> None:
    """Neither the checks before llama.cpp nor llama.cpp itself may be the only guard."""
    with pytest.raises(error, match=message):
        Decider(path, device="cpu", threads=1)
    with pytest.raises(ModelLoadError, match=r"llama.cpp cannot load .*gguf: \w"):
        Engine(path, device="cpu", threads=1)


def forged(data: bytes, key: str, value: int, other: int) -> bytes:
    """The file's bytes with another value of a 32-bit metadata key."""
    entry = key.encode() + struct.pack("<I", gguf.GGUFValueType.UINT32)
    assert data.count(entry + struct.pack("<I", value)) == 1
    return data.replace(entry + struct.pack("<I", value), entry + struct.pack("<I", other))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "model.gguf"


@pytest.fixture
def llama(path: Path) -> bytes:
    return write_llama(path).read_bytes()


def test_missing_file(path: Path) -> None:
    open_both(path, ModelNotFound, "no such file")


def test_directory(path: Path) -> None:
    path.mkdir()
    open_both(path, ModelLoadError, "is a directory")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_file_without_read_permission(path: Path, llama: bytes) -> None:
    path.chmod(0)
    open_both(path, ModelLoadError, "Permission denied")


@pytest.mark.parametrize(
    ("data", "message"),
    [(b"", "empty"), (b"a text, and nothing else\n" * 99, "not a GGUF file"), (b"GGUF", "cut off")],
    ids=["empty", "text", "magic only"],
)
def test_no_gguf(path: Path, data: bytes, message: str) -> None:
    path.write_bytes(data)
    open_both(path, ModelLoadError, message)


@pytest.mark.parametrize("kept", [24, 100, 1000, 2400, 70_000, -1])
def test_cut_off_file(path: Path, llama: bytes, kept: int) -> None:
    path.write_bytes(llama[:kept])
    open_both(path, ModelLoadError, "cut off|llama.cpp cannot load")


def test_half_of_a_real_tokenizer(path: Path, tiny_path: Path) -> None:
    path.write_bytes(tiny_path.read_bytes()[: 5 << 20])
    open_both(path, ModelLoadError, "cannot load")


def test_unknown_architecture(path: Path) -> None:
    write_llama(path, architecture="nosuch")
    open_both(path, ModelLoadError, "unknown model architecture: 'nosuch'")


def test_unknown_tokenizer(path: Path) -> None:
    write_llama(path, vocabulary="nosuch")
    open_both(path, ModelLoadError, "unknown tokenizer: 'nosuch'")


@pytest.mark.parametrize("blocks", [0, 2, 513, 2**32 - 1])
def test_number_of_layers_that_is_not_the_files(path: Path, llama: bytes, blocks: int) -> None:
    path.write_bytes(forged(llama, "llama.block_count", 1, blocks))
    open_both(path, ModelLoadError, "not found" if blocks == 2 else "LLAMA_MAX_LAYERS")


def test_sizes_that_no_graph_can_be_made_of(path: Path, tiny_path: Path) -> None:
    path.write_bytes(forged(tiny_path.read_bytes(), "qwen35.ssm.inner_size", 512, 1024))
    for _ in range(2):
        with pytest.raises(ModelLoadError, match=r"makes no context .*GGML_ASSERT"):
            Decider(path, device="cpu", threads=1)


@pytest.mark.parametrize(
    ("write", "message"),
    [
        (write_bert, "no memory that could be shared"),
        (lambda path: write_llama(path, vocabulary="no_vocab"), "holds no vocabulary"),
        (lambda path: write_llama(path, vocabulary="llama", tokens=["<unk>", *"ABC"]), "vocabulary cannot be used"),
    ],
    ids=["encoder", "no vocabulary", "vocabulary without bytes"],
)
def test_loads_but_cannot_decide(path: Path, write: Callable[[Path], Path], message: str) -> None:
    with pytest.raises(ModelLoadError, match=message):
        Decider(write(path), device="cpu", threads=1)


def test_vocabulary_of_six_labels(path: Path) -> None:
    with Decider(write_llama(path), device="cpu", threads=1) as decider:
        assert decider.info()["labels"] == 6
        assert len(decider.evaluate("abc", {"q": Choice("which?", list("uvwxyz"))}).answers["q"].array()) == 6
        with pytest.raises(InvalidRequest, match=r"'q'.*has 8 options.* holds 6 labels"):
            decider.evaluate("abc", {"q": Choice("which?", list("stuvwxyz"))})


def test_vocabulary_without_labels(path: Path) -> None:
    tokens = [token for token in PLAIN if not token.isupper()]
    with Decider(write_llama(path, tokens=tokens), device="cpu", threads=1) as decider:
        with pytest.raises(InvalidRequest, match="holds 0 labels"):
            decider.evaluate("abc", QUESTION)
        assert decider.evaluate("abc", {"q": Choice("which?", ["only"])}).answers["q"].array().tolist() == [1.0]


@pytest.mark.parametrize("weight", [math.nan, math.inf], ids=str)
def test_weights_that_are_not_finite_give_no_answer(path: Path, weight: float) -> None:
    with Decider(write_llama(path, faulty=weight), device="cpu", threads=1) as decider:
        for _ in range(2):
            with pytest.raises(BackendError, match="not finite"):
                decider.evaluate("abc", QUESTION)


def test_chat_layout_without_a_template(path: Path, llama: bytes) -> None:
    with pytest.raises(ModelLoadError, match="chat_template="):
        Decider(path, device="cpu", threads=1, layout="chat")
    with Decider(path, device="cpu", threads=1, layout="chat", chat_template="{{ messages[0].content }} (") as decider:
        assert decider.evaluate("abc", QUESTION).answers


def test_chat_template_that_is_no_template(path: Path) -> None:
    write_llama(path, chat_template="{% for %}")
    with pytest.raises(ModelLoadError, match="cannot be rendered"):
        Decider(path, device="cpu", threads=1, layout="chat")


def test_text_that_is_not_utf8(path: Path) -> None:
    data = write_llama(path, chat_template="a template that names itself").read_bytes()
    path.write_bytes(data.replace(b"names itself", b"names \xff\xfe ..."))
    with Decider(path, device="cpu", threads=1) as decider:
        assert "\ufffd" in decider._engine.chat_template
        assert "\ufffd" in decider._engine.metadata["tokenizer.chat_template"]
    path.write_bytes(data.replace(b"\x05\0\0\0\0\0\0\0llama", b"\x05\0\0\0\0\0\0\0lla\xffa", 1))
    with pytest.raises(ModelLoadError, match="unknown model architecture: 'lla\ufffda'"):
        Decider(path, device="cpu", threads=1)


def test_quantizing_what_cannot_be(path: Path, llama: bytes) -> None:
    with pytest.raises(InvalidRequest, match=r"unknown quantization 'Q9'; use one of: .*Q4_K_M"):
        quantize(path, path.with_name("out.gguf"), "Q9")
    with pytest.raises(BackendError, match="cannot quantize"):
        quantize(path.with_name("missing.gguf"), path.with_name("out.gguf"), "F16")


DAMAGE = """
import random, sys
from pathlib import Path
from decider_native import Decider, DeciderError, Noul

path, size = Path(sys.argv[1]), int(sys.argv[2])
whole = path.read_bytes()
refused = 0
for seed in range(200):
    rng = random.Random(seed)
    data = bytearray(whole)
    for _ in range(rng.choice([1, 2, 4])):
        data[rng.randrange(size)] = rng.choice([0, 1, 127, 128, 255])
    path.write_bytes(data)
    try:
        with Decider(path, device="cpu", threads=1) as decider:
            decider.evaluate("abc", {"q": Noul("is it?")})
    except DeciderError:
        refused += 1
print(refused)
"""


def test_damaged_bytes_before_the_weights(path: Path, llama: bytes) -> None:
    weights = len(llama) - 4 * 64 * (len(PLAIN) + 7 * 64 + 3)  # bytes, alignment aside
    done = subprocess.run(
        [sys.executable, "-c", DAMAGE, str(path), str(weights)], capture_output=True, text=True, timeout=300
    )
    assert (done.stderr, done.returncode) == ("", 0)
    assert int(done.stdout) > 50
