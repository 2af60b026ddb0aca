"""Peak memory of one contestant, in a process that does nothing else: what compare.py runs for its case "memory".

    python bench/peak_memory.py CONTESTANT MODEL THREADS CONTEXT_TOKENS < REQUEST.json

The request is `{"state": TEXT, "rows": [[TOKEN_IDS, LABELS], ...]}`: a state, and the rows that ask `EIGHT` about it.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import numpy as np
from contestants import OURS, PREFIX
from harness import EIGHT
from peers import LeftOut, open_llama_cpp, restored_prefix

from decider_native import Decider
from decider_native.decider import Row
from decider_native.engine import Engine


def status_bytes(field: str) -> int:
    """Bytes of a field of this process's status, such as VmHWM: its most resident memory so far."""
    found = re.search(rf"{field}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found
    return 1024 * int(found[1])


def main() -> int:
    """Print what was measured, as JSON; sizes in bytes."""
    contestant, model = sys.argv[1], Path(sys.argv[2])
    threads, context_tokens = map(int, sys.argv[3:])
    if not Path("/proc/self/status").exists():
        sys.exit("peak memory is read from /proc, which this system does not have")
    request = json.load(sys.stdin)
    rows = [Row("", "noul", ("",) * labels, np.array(ids, np.int32), "") for ids, labels in request["rows"]]
    before = status_bytes("VmRSS")
    if contestant == OURS:
        with Decider(model, device="cpu", threads=threads, context_tokens=context_tokens, mode="exact") as decider:
            decider.evaluate(request["state"], EIGHT)
    elif contestant == PREFIX:
        engine = Engine(
            model, device="cpu", threads=threads, context_tokens=context_tokens, mode="exact", context_cache_bytes=0
        )
        restored_prefix(engine, rows)
        engine.close()
    else:
        try:
            open_llama_cpp(model, threads, context_tokens)(rows)
        except LeftOut as reason:
            sys.exit(str(reason))
    print(json.dumps({"peak": status_bytes("VmHWM"), "before_loading": before}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
