"""One self-contained page with figures and plots; nothing is fetched from anywhere when it is opened."""

from __future__ import annotations

import html
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from slotline.core.errors import ConfigError

STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 62rem; padding: 0 1rem; color: #1b1f24 }
table { border-collapse: collapse; margin: 1rem 0; font-variant-numeric: tabular-nums }
td, th { padding: .2rem .8rem; border-bottom: 1px solid #d8dee4; text-align: right }
td:first-child, th:first-child { text-align: left }
h2 { margin-top: 2.5rem } svg { max-width: 100%; height: auto } .note { color: #57606a }
@media (prefers-color-scheme: dark) { body { background: #0d1117; color: #e6edf3 } td, th { border-color: #30363d }
  svg { background: #fff } }
"""


class Page:
    """Parts of a report, in order."""

    def __init__(self, title: str, note: str = "") -> None:
        self._parts = [f"<h1>{html.escape(title)}</h1>"]
        self._title = title
        if note:
            self.note(note)

    def note(self, text: str) -> None:
        self._parts.append(f'<p class="note">{html.escape(text)}</p>')

    def heading(self, text: str) -> None:
        self._parts.append(f"<h2>{html.escape(text)}</h2>")

    def table(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """One row for each mapping; the columns are all names that occur, in order."""
        columns = list(dict.fromkeys(name for row in rows for name in row))
        head = "".join(f"<th>{html.escape(name)}</th>" for name in columns)
        lines = ("".join(f"<td>{html.escape(_text(row.get(name)))}</td>" for name in columns) for row in rows)
        body = "".join(f"<tr>{line}</tr>" for line in lines)
        self._parts.append(f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>")

    def plot(
        self,
        title: str,
        lines: Mapping[str, tuple[Sequence[float], Sequence[float]]],
        x: str,
        y: str,
        *,
        logarithmic: bool = False,
    ) -> None:
        """``lines``: (x values, y values) by label."""
        pyplot = _pyplot()
        figure, axes = pyplot.subplots(figsize=(8, 3.6), layout="constrained")
        try:
            for label, (xs, ys) in lines.items():
                axes.plot(xs, ys, marker="o" if len(xs) < 40 else "", linewidth=1.4, markersize=4, label=label)
            if logarithmic:
                axes.set_xscale("log", base=2)
                axes.set_yscale("log")
            else:
                axes.set_ylim(bottom=0)
            axes.set(title=title, xlabel=x, ylabel=y)
            axes.grid(visible=True, alpha=0.25)
            if len(lines) > 1:
                axes.legend()
            drawn = io.StringIO()
            figure.savefig(drawn, format="svg", metadata={"Date": None})
        finally:
            pyplot.close(figure)
        text = drawn.getvalue()
        self._parts.append(text[text.index("<svg") :])

    def write(self, path: Path) -> None:
        """``ConfigError`` if the file cannot be written."""
        body = "\n".join(self._parts)
        page = (
            f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{html.escape(self._title)}</title>'
            f"<style>{STYLE}</style></head><body>\n{body}\n</body></html>\n"
        )
        try:
            path.write_text(page, "utf-8")
        except OSError as error:
            raise ConfigError(f"--report {path}: {error.strerror or error}") from error


def require_plots() -> None:
    """``ConfigError`` if reports cannot be drawn here; asked before the work begins."""
    _pyplot()


def _pyplot() -> Any:
    try:
        import matplotlib
    except ImportError:
        raise ConfigError("--report needs matplotlib; get it with: pip install 'slotline[cli]'") from None
    matplotlib.use("Agg")
    from matplotlib import pyplot

    return pyplot


def _text(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:,.4g}" if abs(value) < 10 else f"{value:,.1f}"
    if isinstance(value, int):
        return f"{value:,}"
    return str(value)
