#!/bin/sh
# Makes .venv (or what KEIMA_VENV names) and installs the requirement files given, in their order, unless they are installed already.
# It runs in a checkout, and on the machines of workers.
# Reads PYTHON (the interpreter to use) and TORCH_INDEX (where torch is taken from, and from nowhere else); `make setup` passes both on.
# KEIMA_WHEELS names a folder that has all packages as wheels: nothing is downloaded then.
set -eu
venv=${KEIMA_VENV:-.venv}
mkdir -p "$(dirname "$venv")"

new_enough() { "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; }

find_python() {
    for name in ${PYTHON:-python3 python3.14 python3.13 python3.12 python3.11}; do
        if new_enough "$name"; then
            echo "$name"
            return
        fi
    done
    echo "Keima needs Python 3.11 or newer, and ${PYTHON:-python3} is not. If you have one: make setup PYTHON=/path/to/python3.11" >&2
    return 1
}

make_venv() {
    if "$1" -m venv "$venv" >"$venv.log" 2>&1; then
        rm -f "$venv.log"
        return
    fi
    # Debian and Ubuntu keep ensurepip in a package of its own; a pip outside will do as well.
    if "$1" -m venv --without-pip --clear "$venv" >>"$venv.log" 2>&1 && "$1" -m pip --python "$venv/bin/python" install pip >>"$venv.log" 2>&1; then
        rm -f "$venv.log"
        return
    fi
    # A pip among the wheels will do too: a wheel can be run as it is.
    for wheel in "${KEIMA_WHEELS:-/nowhere}"/pip-*.whl; do
        if [ -e "$wheel" ] && "$1" -m venv --without-pip --clear "$venv" >>"$venv.log" 2>&1 &&
            "$venv/bin/python" "$wheel/pip" install --no-index --find-links="$KEIMA_WHEELS" pip >>"$venv.log" 2>&1; then
            rm -f "$venv.log"
            return
        fi
    done
    cat "$venv.log" >&2
    rm -rf "$venv" "$venv.log"
    echo "This Python cannot make virtual environments. On Debian and Ubuntu: sudo apt-get install python3-venv" >&2
    return 1
}

# Without --only-binary a missing wheel would start a long build from source.
install() {
    if [ -n "${KEIMA_WHEELS:-}" ]; then
        set -- --no-index --find-links="$KEIMA_WHEELS" "$@"
    fi
    "$venv/bin/python" -m pip install --no-compile --quiet --disable-pip-version-check --only-binary=:all: "$@"
}

# pip compiles modules one after the other, which takes half of its time; this does it on all cores. Some packages have files that no
# Python can compile.
compile_packages() { "$venv/bin/python" -W ignore -m compileall -qq -j 0 "$venv/lib" || true; }

# What is installed is known by a copy of the file that asked for it.
installed() { cmp -s "$1" "$venv/installed-${1##*/}"; }

if ! new_enough "$venv/bin/python" || ! "$venv/bin/python" -m pip --version >/dev/null 2>&1; then
    rm -rf "$venv"
    make_venv "$(find_python)"
fi
new=
for file in "$@"; do
    if installed "$file"; then
        continue
    fi
    echo "Installing $file"
    torch=$(sed -n 's/^\(torch==[^ ;#]*\).*/\1/p' "$file")
    if [ -n "$torch" ] && [ -n "${TORCH_INDEX:-}" ] && [ -z "${KEIMA_WHEELS:-}" ]; then
        install "--index-url=$TORCH_INDEX" "$torch"
    fi
    install -r "$file"
    new=yes
    cp "$file" "$venv/installed-${file##*/}"
done
if [ -n "$new" ]; then
    compile_packages
fi
