"""What asking about files costs beside asking the same rows of a Decider directly: the ratio of their times.

    python bench/files_overhead.py MODEL.gguf [RUNS]

200 files of 2 KB, one question; medians of runs that take turns. The promise is a ratio of at most 1.15; the smaller
the model, the more of what is around it shows.
"""

from __future__ import annotations

import random
import statistics
import sys
import tempfile
import time
from pathlib import Path

from decider_native import Decider, Noul
from decider_native.files import FileTools, Settings

FILES, BYTES = 200, 2048
QUESTION = Noul("Does `content` ask for a refund?")
WORDS = ("invoice", "paid", "twice", "refund", "the", "of", "nobody", "answered", "customer", "order", "late", "please")


def main() -> int:
    """Print both times and their ratio; 1 when the ratio is over the promise."""
    model, runs = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 5
    with tempfile.TemporaryDirectory() as place:
        root = Path(place)
        chance = random.Random(1)
        for i in range(FILES):
            text = " ".join(chance.choice(WORDS) for _ in range(BYTES))[:BYTES]
            (root / f"{i:03}.txt").write_text(text)
        with Decider(model, device="cpu", context_tokens=4096, context_cache_bytes=0) as decider:
            tools = FileTools(decider.as_judge, root, settings=Settings())
            evaluations = [
                ({"path": path.name, "content": path.read_text()}, {"q": QUESTION}) for path in sorted(root.iterdir())
            ]
            direct, files = [], []
            for _ in range(runs):
                started = time.perf_counter()
                results = decider.evaluate_many(evaluations)
                direct.append(time.perf_counter() - started)
                started = time.perf_counter()
                answers = tools.ask_files(["."], QUESTION).answers
                files.append(time.perf_counter() - started)
                wires = [answer.to_dict()["noul"] for answer in answers]
                assert wires == [result.to_dict()["answers"]["q"]["noul"] for result in results]
    ratio = statistics.median(files) / statistics.median(direct)
    print(f"direct {statistics.median(direct):.3f} s, files {statistics.median(files):.3f} s, ratio {ratio:.3f}")
    return int(ratio > 1.15)


if __name__ == "__main__":
    raise SystemExit(main())
