#!/bin/sh
# Installs those of the Debian packages given that are missing, where that is possible: on Debian's family, as root.
set -eu
command -v dpkg-query >/dev/null && command -v apt-get >/dev/null || exit 0
missing=
for package in "$@"; do
    dpkg-query -W -f '${Status}' "$package" 2>/dev/null | grep -q ' installed$' || missing="$missing $package"
done
[ -n "$missing" ] || exit 0
if [ "$(id -u)" != 0 ]; then
    echo "Not installed, and tests that need them are skipped:$missing" >&2
    exit 0
fi
export DEBIAN_FRONTEND=noninteractive
apt-get update -qq && apt-get install -y -qq --no-install-recommends $missing >/dev/null || echo "Could not install:$missing" >&2
