#!/usr/bin/env bash
# Build and run the native tests with AddressSanitizer and UndefinedBehaviorSanitizer.
#
#   scripts/sanitize.sh [BUILD_FOLDER]
#
# Needs a C++ compiler, CMake, and a Python with the packages of the extra "test" (they write the model that is loaded).
# Only this project's own code is instrumented: llama.cpp is compiled just as `pip install` compiles it, so that ccache,
# where it is installed, need not do it again.
set -euo pipefail
cd "$(dirname "$0")/.."
folder=${1:-build/sanitize}
mkdir -p "$folder"
build=$(cd "$folder" && pwd)
model=$build/tiny.gguf
python=$(command -v python || command -v python3)
compiler() { "$python" -c "import sysconfig; print((sysconfig.get_config_var('$1') or '').split(' ')[0])"; }

generator=()
if command -v ninja > /dev/null; then
  generator=(-G Ninja)
fi
CC=${CC:-$(compiler CC)} CXX=${CXX:-$(compiler CXX)} cmake -S . -B "$build" "${generator[@]}" \
  -DCMAKE_BUILD_TYPE=Release -DPython_EXECUTABLE="$python" -DDECIDER_NATIVE_TESTS=ON -DDECIDER_NATIVE_SANITIZE=ON -DDECIDER_NATIVE_VULKAN=off \
  -DDECIDER_NATIVE_TEST_MODEL="$model" > "$build/configure.log" 2>&1 || { cat "$build/configure.log"; exit 1; }
cmake --build "$build" --parallel --target plan_test engine_test
if [ ! -e "$model" ]; then
  "$python" tests/fixtures/make_tiny_gguf.py "$model"
fi
export ASAN_OPTIONS=detect_stack_use_after_return=1 UBSAN_OPTIONS=print_stacktrace=1
ctest --test-dir "$build" --output-on-failure
