"""The command ``slotline``. Its libraries are an extra; without them it says what to install."""

from __future__ import annotations

import importlib.util
import sys

NEEDED = ("typer", "rich")


def main() -> None:
    """Run the command line and exit with its status."""
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        print(
            f"slotline: the command line needs {' and '.join(missing)}: pip install 'slotline[cli]'",
            file=sys.stderr,
        )
        sys.exit(2)
    from slotline.cli.app import run

    sys.exit(run())


if __name__ == "__main__":
    main()
