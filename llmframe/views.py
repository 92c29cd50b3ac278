"""How plans, jobs and reports look: as text, and as HTML with everything escaped."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import Final

__all__ = ["Sheet", "age", "money", "number"]

# A notebook's theme does not follow the system's; these variables do follow the notebook.
_STYLE: Final = (
    "<style>.llmframe{--fg:var(--jp-ui-font-color1,var(--vscode-editor-foreground,#222));"
    "--bg:var(--jp-layout-color1,var(--vscode-editor-background,transparent));"
    "--line:var(--jp-border-color1,var(--vscode-panel-border,#bbb));"
    "color:var(--fg);background:var(--bg)}"
    "html[theme=dark] .llmframe,html[data-theme=dark] .llmframe,body[data-theme=dark] .llmframe,"
    "body.vscode-dark .llmframe{--fg:var(--jp-ui-font-color1,#eee)}"
    ".llmframe table{border-collapse:collapse;margin:.3em 0}"
    ".llmframe td,.llmframe th{text-align:left!important;vertical-align:top;"
    "padding:.15em .8em .15em 0;border-bottom:1px solid var(--line)}"
    ".llmframe pre{white-space:pre-wrap;margin:.3em 0}</style>"
)


def number(value: float | None) -> str:
    """``1,234``, or ``unknown``."""
    return "unknown" if value is None else f"{value:,.0f}"


def money(value: float | None) -> str:
    """US$ with as many digits as matter; an unknown cost is never 0."""
    if value is None:
        return "unknown"
    return f"US${value:.2f}" if value >= 1 or value == 0 else f"US${value:.4f}"


def age(seconds: float) -> str:
    """``12 min``, in the largest unit that gives at least 1."""
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:.0f} {unit}"
    return f"{max(seconds, 0):.0f} s"


class Sheet:
    """A title, lines of name and value, and longer texts below.

    Subclasses give `_title`, `_lines` and `_texts`; both looks come from these.
    """

    def _title(self) -> str:
        return type(self).__name__

    def _lines(self) -> Iterable[tuple[str, str]]:
        return ()

    def _texts(self) -> Iterable[tuple[str, str]]:
        return ()

    def __repr__(self) -> str:
        lines = list(self._lines())
        width = max((len(name) for name, _ in lines), default=0)
        shown = [self._title(), *(f"  {name:<{width}}  {value}" for name, value in lines)]
        for name, text in self._texts():
            body = "\n".join("    " + line for line in text.splitlines())
            shown.append(f"  {name}:\n{body}")
        return "\n".join(shown)

    def _repr_html_(self) -> str:
        cells = "".join(
            f"<tr><th>{escape(name)}</th><td>{escape(value)}</td></tr>"
            for name, value in self._lines()
        )
        texts = "".join(
            f"<details><summary>{escape(name)}</summary><pre>{escape(text)}</pre></details>"
            for name, text in self._texts()
        )
        return (
            f'{_STYLE}<div class="llmframe"><b>{escape(self._title())}</b>'
            f"<table>{cells}</table>{texts}</div>"
        )


def table_html(title: str, header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table with a header, everything escaped."""
    head = "".join(f"<th>{escape(name)}</th>" for name in header)
    body = "".join(
        "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows
    )
    return (
        f'{_STYLE}<div class="llmframe"><b>{escape(title)}</b>'
        f"<table><tr>{head}</tr>{body}</table></div>"
    )
