#!/usr/bin/env bash
# Unpack newer Vulkan headers beside those of a Debian whose own are too old for llama.cpp; the system stays as it is.
#
#   scripts/vulkan_headers.sh FOLDER
#   CMAKE_PREFIX_PATH=FOLDER/usr pip install .
#
# Takes libvulkan-dev and spirv-headers of Debian 13 from the mirror that apt is configured with. The loader library and
# glslc stay the system's own (packages libvulkan-dev and glslc).
set -euo pipefail
mkdir -p "$1"
folder=$(cd "$1" && pwd)
mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' | grep '/debian/$' | head -n 1)
if [ -z "$mirror" ]; then
  echo "$0: apt is configured with no Debian mirror" >&2
  exit 1
fi
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
mkdir -p "$scratch/lists/partial"
echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $mirror trixie main" > "$scratch/sources.list"
options=(-qq -o "Dir::Etc::sourcelist=$scratch/sources.list" -o Dir::Etc::sourceparts=- -o "Dir::State::lists=$scratch/lists"
         -o Dir::Cache::pkgcache= -o Dir::Cache::srcpkgcache= -o APT::Sandbox::User=root)
apt-get "${options[@]}" update
(cd "$scratch" && apt-get "${options[@]}" download libvulkan-dev spirv-headers)
for package in "$scratch"/*.deb; do
  dpkg-deb --extract "$package" "$folder"
done
