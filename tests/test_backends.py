"""The backend modules inside the package: which are used and why, and that no other library's are."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import pytest

import decider_native
from decider_native.engine import cpu_features, modules
from run_script import run_script

LIBRARIES = next(path / "lib" for path in map(Path, decider_native.__path__) if (path / "lib").is_dir())
CPU_MODULES = sorted(path.name for path in LIBRARIES.glob("libggml-cpu*.so"))


def test_every_module_of_the_package_is_listed() -> None:
    listed = modules()
    assert [module.file for module in listed] == sorted(path.name for path in LIBRARIES.glob("libggml-*.so"))
    assert all(module.backend or len(module.reason or "") > 10 for module in listed)
    (cpu,) = (module for module in listed if module.backend == "CPU")
    assert cpu.file in CPU_MODULES


@pytest.mark.skipif(not Path("/proc/cpuinfo").exists(), reason="no /proc on this system")
def test_cpu_features_are_those_of_this_cpu() -> None:
    flags = set(re.findall(r"\w+", Path("/proc/cpuinfo").read_text().replace("_", "")))
    names = {"SSE3": "pni", "AVX512": "avx512f"}
    used = [name for name, value in cpu_features().items() if value == "1" and name not in ("LLAMAFILE", "REPACK")]
    if not any(name.startswith("AVX") for name in used):
        pytest.skip("the names in /proc/cpuinfo are known for x86 only")
    assert {names.get(name, name.lower().replace("_", "")) for name in used} <= flags


def copy_package(folder: Path, cpu_module: str) -> None:
    """Copy the package with one CPU module and no other backend into a folder."""
    copy = folder / "decider_native"
    for part in reversed(decider_native.__path__):  # an editable install lies in two places
        shutil.copytree(part, copy, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
    for module in (copy / "lib").glob("libggml-*.so"):
        if module.name != cpu_module:
            module.unlink()


def run_copy(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run Python with the package that lies in a folder in place of the installed one."""
    path = os.pathsep.join([str(folder), sysconfig.get_path("platlib"), sysconfig.get_path("purelib")])
    command = [sys.executable, "-S", *arguments]  # without site, which puts an editable install before PYTHONPATH
    return subprocess.run(command, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, timeout=600)


@pytest.mark.skipif(len(CPU_MODULES) < 2, reason="built for this machine's CPU alone (DECIDER_NATIVE_CPU=native)")
@pytest.mark.parametrize("cpu_module", CPU_MODULES)
def test_every_cpu_variant_that_runs_here_gives_the_golden_answers(cpu_module: str, tmp_path: Path) -> None:
    """In exact mode; fast mode, which has other kernels, is close to that."""
    (listed,) = (module for module in modules() if module.file == cpu_module)
    if listed.reason and "lacks instructions" in listed.reason:
        pytest.skip(listed.reason)
    copy_package(tmp_path, cpu_module)
    assert cpu_module in run_copy(tmp_path, "-m", "decider_native", "devices").stdout
    tests = Path(__file__).parent
    options = ["--import-mode=importlib", "-o", f"pythonpath={tests / 'fixtures'}", f"--rootdir={tests}"]
    chosen = [f"{tests}/test_golden.py", f"{tests}/test_exactness.py::test_fast_mode_is_close"]
    done = run_copy(tmp_path, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", os.devnull, *options, *chosen)
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_package_without_a_usable_cpu_module_says_why(tmp_path: Path) -> None:
    copy_package(tmp_path, "none")
    (tmp_path / "decider_native" / "lib" / "libggml-cpu-broken.so").write_bytes(b"no library")
    said = run_copy(tmp_path, "-m", "decider_native", "devices")
    assert said.returncode == 5
    assert "no CPU backend could be loaded" in said.stderr
    assert re.search(r"libggml-cpu-broken.so: .*(too short|invalid)", said.stderr)


@pytest.mark.skipif(sys.platform != "linux", reason="LD_DEBUG is glibc's")
def test_no_library_of_the_working_directory_is_opened(tmp_path: Path) -> None:
    for name in CPU_MODULES:
        shutil.copy(LIBRARIES / name, tmp_path / "libggml-cpu-zzz.so")
        shutil.copy(LIBRARIES / name, tmp_path / "libggml-blas.so")
    done = run_script("from decider_native import devices; devices()", cwd=tmp_path, LD_DEBUG="files")
    opened = done.stderr.decode(errors="replace")
    assert done.returncode == 0
    assert str(LIBRARIES / CPU_MODULES[0]) in opened  # the loader does tell
    assert str(tmp_path) not in opened
    assert "libggml-blas" not in opened


@pytest.mark.skipif(shutil.which("nm") is None, reason="needs nm")
def test_the_extension_shows_its_init_function_alone() -> None:
    (extension,) = LIBRARIES.parent.glob("_native*.so")
    done = subprocess.run(["nm", "-D", "--defined-only", extension], capture_output=True, text=True, check=True)
    assert [line.split()[-1].lstrip("_") for line in done.stdout.splitlines()] == ["PyInit__native"]


OURS = """
def ours():
    from decider_native import Decider, Noul
    with Decider(sys.argv[1], device="cpu", threads=1, context_tokens=256) as decider:
        return decider.evaluate("Billed twice.", {"q": Noul("Refund?")}).answers["q"].noul.hex()
"""
THEIRS = {
    "xllamacpp": """
def theirs():
    import xllamacpp
    params = xllamacpp.CommonParams()
    params.model.path, params.n_ctx, params.n_parallel, params.warmup = sys.argv[1], 256, 1, False
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
    server = xllamacpp.Server(params)
    wish = {"prompt": "Hello world", "n_predict": 3, "temperature": 0}
    return server.handle_completions(wish)["choices"][0]["text"]
""",
    "llama_cpp": """
def theirs():
    import llama_cpp
    llama = llama_cpp.Llama(sys.argv[1], n_ctx=256, n_threads=1, n_threads_batch=1, verbose=False)
    return llama.create_completion("Hello world", max_tokens=3, temperature=0)["choices"][0]["text"]
""",
}


@pytest.mark.parametrize("order", ["ours, theirs, ours", "theirs, ours, theirs"])
@pytest.mark.parametrize("other", THEIRS)
def test_another_llama_cpp_in_the_same_process(other: str, order: str, make_model: Callable[..., Path]) -> None:
    if find_spec(other) is None:
        pytest.skip(f"{other} is not installed")
    path = make_model("qwen3", "F16")

    def say(calls: str) -> list[str]:
        answers = "".join(f"print('answer', repr({name}()))\n" for name in calls.split(", "))
        done = run_script("import sys\n" + OURS + THEIRS[other] + answers, path)
        assert done.returncode == 0, done.stderr.decode()[-2000:]
        return [line for line in done.stdout.decode().splitlines() if line.startswith("answer")]

    alone = {"ours": say("ours")[0], "theirs": say("theirs")[0]}
    assert say(order) == [alone[name] for name in order.split(", ")]
