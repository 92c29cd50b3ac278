"""A reader of llama.cpp's grammars, small and slow, to test the ones that are made.

Written from the format's description, not from the code under test: a rule is alternatives of
sequences of literals, classes, names and groups, each with ``? * + {m,n}``.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any

_TOKEN = re.compile(
    r"""\s*(?:(?P<literal>"(?:[^"\\]|\\.)*")|(?P<class>\[\^?(?:[^\]\\]|\\.)*\])"""
    r"""|(?P<name>[a-z][a-z0-9-]*)|(?P<count>\{\d+(?:,\d*)?\}|[?*+])|(?P<mark>[()|]))"""
)
_ESCAPES = {"n": "\n", "r": "\r", "t": "\t"}


def _char(text: str, i: int) -> tuple[str, int]:
    if text[i] != "\\":
        return text[i], i + 1
    if text[i + 1] == "x":
        return chr(int(text[i + 2 : i + 4], 16)), i + 4
    return _ESCAPES.get(text[i + 1], text[i + 1]), i + 2


def _literal(token: str) -> str:
    made, i = "", 1
    while i < len(token) - 1:
        char, i = _char(token, i)
        made += char
    return made


def _class(token: str) -> tuple[bool, list[tuple[str, str]]]:
    negated = token[1] == "^"
    i, ranges = 1 + negated, []
    while i < len(token) - 1:
        low, i = _char(token, i)
        high = low
        if token[i] == "-" and i + 1 < len(token) - 1:
            high, i = _char(token, i + 1)
        ranges.append((low, high))
    return negated, ranges


def parse(grammar: str) -> dict[str, Any]:
    """Rules by name; each a tree of ("or" | "seq" | "rep" | "lit" | "class" | "name", …)."""
    rules = {}
    for line in grammar.splitlines():
        name, _, body = line.partition(" ::= ")
        tokens = []
        position = 0
        while position < len(body.rstrip()):
            match = _TOKEN.match(body, position)
            assert match, f"not GBNF: {body[position:]!r}"
            tokens.append((str(match.lastgroup), match[match.lastgroup or 0]))
            position = match.end()
        tree, rest = _alternatives(tokens)
        assert not rest, rest
        rules[name] = tree
    for name in _names(list(rules.values())):
        assert name in rules, f"no rule {name}"
    return rules


def _names(tree: Any) -> set[str]:
    if isinstance(tree, list | tuple):
        if len(tree) == 2 and tree[0] == "name":
            return {tree[1]}
        return set().union(*(_names(item) for item in tree))
    return set()


def _alternatives(tokens: list[tuple[str, str]]) -> tuple[Any, list[tuple[str, str]]]:
    choices: list[Any] = [[]]
    while tokens and tokens[0] != ("mark", ")"):
        (kind, text), tokens = tokens[0], tokens[1:]
        if (kind, text) == ("mark", "|"):
            choices.append([])
            continue
        item: Any
        if (kind, text) == ("mark", "("):
            item, tokens = _alternatives(tokens)
            assert tokens[0] == ("mark", ")")
            tokens = tokens[1:]
        elif kind == "literal":
            item = ("lit", _literal(text))
        elif kind == "class":
            item = ("class", _class(text))
        elif kind == "name":
            item = ("name", text)
        else:
            low, high = {"?": (0, 1), "*": (0, 10**9), "+": (1, 10**9)}.get(text) or _count(text)
            choices[-1].append(("rep", low, high, choices[-1].pop()))
            continue
        choices[-1].append(item)
    return ("or", [("seq", choice) for choice in choices]), tokens


def _count(text: str) -> tuple[int, int]:
    low, comma, high = text[1:-1].partition(",")
    return int(low), int(high) if high else (10**9 if comma else int(low))


@lru_cache(maxsize=64)
def _parsed(grammar: str) -> dict[str, Any]:
    return parse(grammar)


def accepts(grammar: str, text: str) -> bool:
    """Whether the whole text is in the grammar's language."""
    rules = _parsed(grammar)

    def ends(tree: Any, starts: set[int]) -> set[int]:
        if not starts:
            return set()
        kind = tree[0]
        if kind == "lit":
            return {i + len(tree[1]) for i in starts if text.startswith(tree[1], i)}
        if kind == "class":
            negated, ranges = tree[1]
            return {
                i + 1
                for i in starts
                if i < len(text) and any(a <= text[i] <= b for a, b in ranges) != negated
            }
        if kind == "name":
            return ends(rules[tree[1]], starts)
        if kind == "or":
            return set().union(*(ends(branch, starts) for branch in tree[1]))
        if kind == "seq":
            for item in tree[1]:
                starts = ends(item, starts)
            return starts
        _, low, high, item = tree
        reached = set(starts) if low == 0 else set()
        for count in range(1, high + 1):
            before = starts
            starts = ends(item, starts)
            if not starts or (count > low and starts <= reached and starts == before):
                break
            if count >= low:
                reached |= starts
        return reached

    return len(text) in ends(rules["root"], {0})
