#!/usr/bin/env bash
# What `make setup` does: system tools where apt and root are at hand, then a virtual environment with the project in it.
# Usage: testbed/install.sh VENV
set -euo pipefail
venv=$1
python=${PYTHON:-python3}

# name of the tool -> Debian or Ubuntu package that brings it
declare -A tools=([mnexec]=mininet [ip]=iproute2 [tc]=iproute2 [ethtool]=ethtool [ifconfig]=net-tools
                  [unshare]=util-linux)
export PATH=$PATH:/usr/sbin:/sbin

packages=()
for tool in "${!tools[@]}"; do
  package=${tools[$tool]}
  command -v "$tool" >/dev/null || [[ " ${packages[*]} " == *" $package "* ]] || packages+=("$package")
done
"$python" -c 'import ensurepip' 2>/dev/null || packages+=(python3-venv)

if command -v apt-get >/dev/null && [ "$(id -u)" = 0 ]; then
  export DEBIAN_FRONTEND=noninteractive
  # They stand in where CIFAR and WikiText-2 cannot be downloaded. They are not in every release: no reason to stop.
  datasets=()
  for package in dataset-fashion-mnist bible-kjv; do
    dpkg -s "$package" >/dev/null 2>&1 || datasets+=("$package")
  done
  if [ ${#packages[@]} -gt 0 ] || [ ${#datasets[@]} -gt 0 ]; then
    echo "setup: installing ${packages[*]} ${datasets[*]}"
    apt-get update -qq || echo "setup: the package lists could not be renewed; going on with those that are here"
    [ ${#packages[@]} -eq 0 ] || apt-get install -y -qq --no-install-recommends "${packages[@]}" >/dev/null
    for package in "${datasets[@]}"; do
      apt-get install -y -qq --no-install-recommends "$package" >/dev/null ||
        echo "setup: $package is not to be had here; \`dblp doctor\` says what needs it"
    done
  fi
elif [ ${#packages[@]} -gt 0 ]; then
  echo "setup: missing: ${packages[*]} (as root: apt-get install --no-install-recommends ${packages[*]})."
  echo "setup: without them only the engine 'local' works. Going on."
fi

"$python" - <<'CHECK'
import sys
if sys.version_info < (3, 11):
    sys.exit(f"setup: Python {sys.version.split()[0]} is too old; 3.11 or newer is needed. Try: make setup PYTHON=python3.12")
CHECK

echo "setup: Python environment in $venv (torch is large: several GB, minutes on the first run)"
"$python" -m venv "$venv"
"$venv/bin/pip" install --quiet --disable-pip-version-check --editable '.[dev]'
echo "setup: done"
