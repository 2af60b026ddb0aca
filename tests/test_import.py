"""What `import decider_native` gives and what it leaves for later."""

from __future__ import annotations

import sys

import pytest

import decider_native
from run_script import run_script

# Who makes questions, or asks a command for its help, opens no model.
UNUSED = """
import sys
from decider_native import Choice, Decider, Noul, Score, evaluate
evaluate, Decider, Score("How much?", ["little", "much"])
print(sorted({"numpy", "decider_native._native", "huggingface_hub"} & set(sys.modules)))
"""
RESIDENT = """
import decider_native, re
print(re.search(r"VmRSS:\\s*(\\d+) kB", open("/proc/self/status").read())[1])
"""


def test_numpy_and_the_extension_come_with_the_first_model_or_device() -> None:
    done = run_script(UNUSED)
    assert (done.stdout.split(b"\n")[0], done.stderr) == (b"[]", b"")
    done = run_script(UNUSED.replace("print", "from decider_native import devices; devices(); print"))
    assert done.stdout.split(b"\n")[0] == b"['decider_native._native', 'numpy']"


def test_every_public_name_is_there_and_listed() -> None:
    assert set(decider_native.__all__) <= set(dir(decider_native))
    assert all(hasattr(decider_native, name) for name in decider_native.__all__)
    with pytest.raises(AttributeError, match="'decider_native' has no attribute 'device'"):
        decider_native.device  # type: ignore[attr-defined]  # noqa: B018


@pytest.mark.skipif(sys.platform != "linux", reason="/proc is Linux's")
def test_an_import_takes_less_than_60_mb_of_memory() -> None:
    assert int(run_script(RESIDENT).stdout) < 60_000
