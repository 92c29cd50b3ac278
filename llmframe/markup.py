r"""HTML for notebooks, without JavaScript: what comes from data is escaped, cut and harmless.

One look for everything that llmframe shows, readable on the light and the dark theme of
JupyterLab, Notebook 7, VS Code, Colab and Sphinx pages. Functions give `Html`; whatever else they
are given is data, and is escaped.

Examples:
    >>> print(escaped("<b>\x1b[31mred\x1b[0m"))
    &lt;b&gt;red
    >>> "<script" in page(table(["cell"], [["<script>"]]), title="Rows")
    False
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from html import escape
from typing import Final

__all__ = [
    "Html",
    "bars",
    "details",
    "escaped",
    "facts",
    "heading",
    "joined",
    "meter",
    "note",
    "page",
    "plain",
    "shaded",
    "table",
    "text",
    "toned",
]

_CELL: Final = 500
_SHORT: Final = 24
"""Characters of a cell that is never broken: a name, an id."""
_LONG: Final = 20_000
"""Characters of a text that is shown for itself: a prompt, a reply."""

_DARK: Final = ",".join(
    f"{where} .llmframe"
    for where in (
        "html[theme=dark]",  # Colab
        "html[data-theme=dark]",  # Sphinx: pydata
        "body[data-theme=dark]",  # Sphinx: Furo
        "body.vscode-dark",
        "body.vscode-high-contrast",
    )
)

# A notebook's theme does not follow the system's; these variables do follow the notebook. Where
# there are none, text has the colour of the page around it, and lines a grey that shows on both.
_STYLE: Final = (
    "<style>"
    ".llmframe{--llmframe-line:var(--jp-border-color1,var(--vscode-panel-border,#8886));"
    "--llmframe-soft:var(--jp-layout-color2,var(--vscode-textCodeBlock-background,#8882));"
    "--llmframe-bar:var(--jp-brand-color1,var(--vscode-charts-blue,#1976d2));"
    "--llmframe-good:var(--jp-success-color1,var(--vscode-charts-green,#2e7d32));"
    "--llmframe-bad:var(--jp-error-color1,var(--vscode-errorForeground,#c62828));"
    "--llmframe-warn:var(--jp-warn-color1,var(--vscode-charts-orange,#b26a00));"
    "color:var(--jp-ui-font-color1,var(--vscode-editor-foreground,inherit));"
    "background:var(--jp-layout-color0,var(--vscode-editor-background,transparent));"
    "font-size:var(--jp-ui-font-size1,13px);line-height:1.45;padding:.2em 0}"
    f"{_DARK}{{--llmframe-bar:var(--jp-brand-color1,var(--vscode-charts-blue,#64b5f6));"
    "--llmframe-good:var(--jp-success-color1,var(--vscode-charts-green,#81c784));"
    "--llmframe-bad:var(--jp-error-color1,var(--vscode-errorForeground,#e57373));"
    "--llmframe-warn:var(--jp-warn-color1,var(--vscode-charts-orange,#ffb74d))}"
    "html[theme=dark] .llmframe{color:#e3e3e3}"
    ".llmframe .llmframe-title{font-weight:600;font-size:1.08em;margin:.1em 0 .4em}"
    ".llmframe .llmframe-head{font-weight:600;margin:.7em 0 .2em}"
    ".llmframe .llmframe-note{opacity:.75;margin:.3em 0}"
    ".llmframe .llmframe-scroll{overflow:auto;max-height:32em;margin:.3em 0}"
    ".llmframe table.llmframe-table{border-collapse:collapse;margin:0;border:none;"
    "table-layout:auto;width:auto;font-size:inherit;color:inherit;background:transparent}"
    # As strong as JupyterLab's own stripes, which run through names and values.
    ".llmframe .llmframe-table tbody tr:nth-child(n){background:transparent;border:none}"
    ".llmframe .llmframe-table td,.llmframe .llmframe-table th{text-align:left;"
    "vertical-align:top;padding:.2em .9em .2em 0;border:none;max-width:60em;"
    "border-bottom:1px solid var(--llmframe-line);overflow-wrap:anywhere;white-space:pre-wrap}"
    ".llmframe .llmframe-table td.llmframe-short{white-space:nowrap;overflow-wrap:normal}"
    ".llmframe .llmframe-table th{font-weight:600;white-space:nowrap;overflow-wrap:normal}"
    ".llmframe .llmframe-table thead th{border-bottom-width:2px}"
    ".llmframe .llmframe-table td.llmframe-number,.llmframe .llmframe-table th.llmframe-number"
    "{text-align:right;font-variant-numeric:tabular-nums;white-space:nowrap;"
    "overflow-wrap:normal}"
    ".llmframe .llmframe-facts th,.llmframe .llmframe-facts td,.llmframe .llmframe-bars td,"
    ".llmframe .llmframe-bars th{border:none;padding-bottom:.05em;padding-top:.05em;"
    "font-weight:400}"
    ".llmframe .llmframe-facts th{opacity:.75}"
    ".llmframe .llmframe-bars td,.llmframe .llmframe-bars th{vertical-align:middle}"
    ".llmframe .llmframe-bars td.llmframe-track{width:18em;padding-right:.6em}"
    ".llmframe .llmframe-fill{height:.95em;min-width:1px;border-radius:2px;"
    "background:var(--llmframe-bar)}"
    ".llmframe .llmframe-meter{display:inline-block;width:7em;height:.6em;border-radius:.3em;"
    "background:var(--llmframe-line);overflow:hidden;vertical-align:baseline;margin-right:.5em}"
    ".llmframe .llmframe-wide{width:18em;height:.8em}"
    ".llmframe .llmframe-meter .llmframe-fill{height:100%;min-width:0;border-radius:0;float:left}"
    ".llmframe .llmframe-shade{position:relative;isolation:isolate;display:block;"
    "min-width:2.5em;padding-right:.2em;margin-right:-.2em}"
    ".llmframe .llmframe-shade .llmframe-fill{position:absolute;inset:0;height:auto;z-index:-1}"
    ".llmframe .llmframe-fill-good{background:var(--llmframe-good)}"
    ".llmframe .llmframe-fill-bad{background:var(--llmframe-bad)}"
    ".llmframe .llmframe-good{color:var(--llmframe-good)}"
    ".llmframe .llmframe-bad{color:var(--llmframe-bad)}"
    ".llmframe .llmframe-warn{color:var(--llmframe-warn)}"
    ".llmframe details{margin:.25em 0}"
    ".llmframe summary{cursor:pointer}"
    ".llmframe pre.llmframe-text{white-space:pre-wrap;overflow-wrap:anywhere;margin:.3em 0;"
    "padding:.5em .7em;max-height:24em;overflow:auto;border-radius:3px;color:inherit;"
    "background:var(--llmframe-soft);font-size:.95em;"
    "font-family:var(--jp-code-font-family,var(--vscode-editor-font-family,monospace))}"
    "</style>"
)

# Colours, cursor moves and window titles of terminals (ECMA-48); what is broken is shown.
_ANSI: Final = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\^_])")
# Controls; marks that turn the direction of what follows (a text that reads as another); lone
# surrogates, which cannot be sent to a browser.
_HIDDEN: Final = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)
_TAG: Final = re.compile("<[^>]*>")
_NEWLINES: Final = re.compile(r"\r\n?")


class Html(str):
    """Text that is HTML already; made by this module alone, and never of data."""

    __slots__ = ()


def _visible(found: re.Match[str]) -> str:
    code = ord(found[0])
    if code < 0x20:
        return chr(0x2400 + code)  # ␀ … ␟
    return "␡" if code == 0x7F else f"⟨U+{code:04X}⟩"


def plain(value: object, limit: int = _LONG) -> str:
    r"""A value as text that does nothing to a terminal, cut as `escaped` cuts it.

    Args:
        value: Anything; its `str`.
        limit: Characters that are shown.

    Examples:
        >>> plain("\x1b[31mred\x1b[0m\x07 alert", limit=12)
        'red… (7 more characters)'
    """
    whole = value if isinstance(value, str) else str(value)
    shown = _NEWLINES.sub("\n", _ANSI.sub("", whole[:limit]))
    more = len(whole) - limit
    cut = f"… ({more:,} more character{'s' if more > 1 else ''})" if more > 0 else ""
    return _HIDDEN.sub(_visible, shown) + cut


def escaped(value: object, limit: int = _CELL) -> Html:
    r"""A value as text that HTML takes for text.

    Codes of terminals are taken out, other control characters are made visible, and what is
    longer than `limit` is cut, with the count of what is left out. `Html` stays as it is.

    Args:
        value: Anything; its `str`.
        limit: Characters that are shown.

    Examples:
        >>> print(escaped("a\x00<td>" + "b" * 1000, limit=6))
        a␀&lt;td&gt;… (1,000 more characters)
    """
    if isinstance(value, Html):
        return value
    return Html(escape(plain(value, limit), quote=True))


def joined(*parts: object) -> Html:
    """Parts one after the other; what is not `Html` is escaped."""
    return Html("".join(map(escaped, parts)))


def page(*parts: object, title: object = None) -> Html:
    """A ``<div class="llmframe">`` that brings its own style.

    Args:
        *parts: `Html`; anything else is shown as a paragraph of text.
        title: Above it.

    Examples:
        >>> print(page("2 < 3").partition("</style>")[2])
        <div class="llmframe-note">2 &lt; 3</div></div>
    """
    head = "" if title is None else f'<div class="llmframe-title">{escaped(title)}</div>'
    shown = (part if isinstance(part, Html) else note(part) for part in parts)
    # MathJax 2 and 3 take what stands between two dollars for a formula, but for these classes.
    ignore = "tex2jax_ignore mathjax_ignore"
    return Html(f'<div class="llmframe {ignore}">{_STYLE}{head}{"".join(shown)}</div>')


def note(value: object) -> Html:
    """A quiet line."""
    return Html(f'<div class="llmframe-note">{escaped(value)}</div>')


def heading(value: object) -> Html:
    """A line above what follows."""
    return Html(f'<div class="llmframe-head">{escaped(value)}</div>')


def table(
    head: Sequence[object],
    rows: Iterable[Sequence[object]],
    numeric: Collection[int] = (),
) -> Html:
    """A table with a header, in a box that scrolls where it is long or wide.

    Args:
        head: Names of the columns.
        rows: One sequence a row, as long as `head`.
        numeric: Places of the columns that hold numbers, which stand to the right.

    Examples:
        >>> print(table(["kind", "rows"], [["<none>", 2]], numeric=[1]).count("<tr>"))
        2
    """

    def shown(tag: str, place: int, cell: object) -> str:
        text = escaped(cell)
        # A browser that may break a word anywhere does so before it makes the table scroll.
        short = tag == "td" and len(_TAG.sub("", text)) <= _SHORT
        kind = "number" if place in numeric else "short" if short else ""
        style = f' class="llmframe-{kind}"' if kind else ""
        return f"<{tag}{style}>{text}</{tag}>"

    def line(tag: str, cells: Sequence[object]) -> str:
        pairs = zip(range(len(head)), cells, strict=True)
        return f"<tr>{''.join(shown(tag, place, cell) for place, cell in pairs)}</tr>"

    body = "".join(line("td", row) for row in rows)
    return Html(
        f'<div class="llmframe-scroll"><table class="llmframe-table"><thead>{line("th", head)}'
        f"</thead><tbody>{body}</tbody></table></div>"
    )


def facts(pairs: Mapping[str, object] | Iterable[tuple[str, object]]) -> Html:
    """Names and values, one a line.

    Args:
        pairs: A mapping, or pairs where a name comes more than once.

    Examples:
        >>> print(facts({"rows": 3}).count("<tr>"))
        1
    """
    items = pairs.items() if isinstance(pairs, Mapping) else pairs
    lines = (f"<tr><th>{escaped(k)}</th><td>{escaped(v, _LONG)}</td></tr>" for k, v in items)
    return Html(
        f'<table class="llmframe-table llmframe-facts"><tbody>{"".join(lines)}</tbody></table>'
    )


def bars(
    counts: Mapping[str, float] | Iterable[tuple[object, float]], *, bad: bool = False
) -> Html:
    """Counts as horizontal bars, the largest one as wide as there is room.

    Args:
        counts: Label → count, in the order in which they are shown.
        bad: They count what went wrong.

    Examples:
        >>> print(bars({"timeout": 4, "refused": 1}).count("width:25.0%"))
        1
    """
    items = list(counts.items() if isinstance(counts, Mapping) else counts)
    most = max((count for _, count in items), default=0) or 1
    lines = (
        f'<tr><th>{escaped(label)}</th><td class="llmframe-number">{count:,}</td>'
        f'<td class="llmframe-track"><div class="llmframe-fill{" llmframe-fill-bad" * bad}" '
        f'style="width:{100 * count / most:.1f}%"></div></td></tr>'
        for label, count in items
    )
    return Html(
        f'<table class="llmframe-table llmframe-bars"><tbody>{"".join(lines)}</tbody></table>'
    )


def meter(done: float, total: float, failed: float = 0, *, wide: bool = False) -> Html:
    """How much of something is done: a bar, and the share as text beside it.

    Args:
        done: For good.
        total: In all.
        failed: For bad.
        wide: As the main thing of a page.

    Examples:
        >>> print(re.sub("<.*?>", "", meter(3, 4)), re.sub("<.*?>", "", meter(0, 0)))
        75 % 100 %
    """
    good, bad = (100 * part / total if total else 0.0 for part in (done, failed))
    good = good if total else 100.0
    # Never "100 %" while a row is left, nor "0 %" once one is done.
    whole = round(good) if good in {0.0, 100.0} else min(99, max(1, round(good)))
    size = " llmframe-wide" if wide else ""
    return Html(
        f'<span class="llmframe-meter{size}"><span class="llmframe-fill llmframe-fill-good" '
        f'style="width:{good:.1f}%"></span><span class="llmframe-fill llmframe-fill-bad" '
        f'style="width:{bad:.1f}%"></span></span>{whole} %'
    )


def shaded(value: float, share: float) -> Html:
    """A count on a ground that is the stronger the larger its share, from 0 to 1."""
    return Html(
        f'<span class="llmframe-shade"><span class="llmframe-fill" '
        f'style="opacity:{0.6 * share:.2f}"></span>{value:,}</span>'
    )


def text(value: object, limit: int = _LONG) -> Html:
    """A longer text, with its line breaks: a prompt, a reply."""
    return Html(f'<pre class="llmframe-text">{escaped(value, limit)}</pre>')


def details(summary: object, *parts: object, opened: bool = False) -> Html:
    """Something that opens with a click, in every notebook and without a kernel."""
    state = " open" if opened else ""
    return Html(f"<details{state}><summary>{escaped(summary)}</summary>{joined(*parts)}</details>")


def toned(value: object, tone: str) -> Html:
    """A word in the colour of what it says.

    Args:
        value: The word.
        tone: ``"good"``, ``"bad"`` or ``"warn"``; anything else leaves it as it is.
    """
    if tone not in {"good", "bad", "warn"}:
        return escaped(value)
    return Html(f'<span class="llmframe-{tone}">{escaped(value)}</span>')
