#!/bin/sh
# Makes .venv (or what KEIMA_VENV names) with the packages of the requirement files given and of requirements.lock, and installs Keima
# itself there as an editable package, unless that is done already. keima/cluster/agent/make_environment.sh says which variables it reads.
set -eu
cd "$(dirname "$0")/.."
venv=${KEIMA_VENV:-.venv}
export PIP_CONSTRAINT=requirements.lock
sh keima/cluster/agent/make_environment.sh "$@"
if ! cmp -s pyproject.toml "$venv/installed-pyproject.toml"; then
    "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps --editable .
    cp pyproject.toml "$venv/installed-pyproject.toml"
fi
