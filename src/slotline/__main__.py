"""``slotline`` and ``python -m slotline``. The command line is an extra: without it, this says how to get it."""

from __future__ import annotations

import sys

_NEEDED = ("typer", "rich")


def main() -> None:
    try:
        from slotline.cli.app import run
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] not in _NEEDED:
            raise
        sys.stderr.write(
            f"slotline: error: the command line needs {error.name}, which is not installed; "
            "get it with: pip install 'slotline[cli]'\n"
        )
        sys.exit(2)
    sys.exit(run())


if __name__ == "__main__":
    main()
