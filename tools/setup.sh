#!/bin/sh
# Finds a Python that lockstep runs on and hands over to setup.py. All this needs is a shell: it is the only
# part of the project that may run where there is no Python, or a wrong one.
set -u
here=$(dirname "$0")
fits='import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))'
for name in "${PYTHON:-python3}" python3.13 python3.12 python3.11; do
    if "$name" -c "$fits" >/dev/null 2>&1; then
        exec "$name" "$here/setup.py" "$@"
    fi
done
found=$(python3 --version 2>/dev/null || echo "no python3 on PATH")
echo "setup: lockstep needs Python 3.11, 3.12 or 3.13 ($found); install one, or run: make PYTHON=/path/to/python3.12" >&2
exit 1
