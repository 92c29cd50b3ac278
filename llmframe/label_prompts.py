"""The built-in prompt of `classify`."""

from __future__ import annotations

from llmframe.labels import Labels

__all__ = ["instructions"]


def instructions(
    labels: Labels,
    *,
    multi: bool = False,
    explain: bool = False,
    system: str | None = None,
    listed: bool = True,
) -> tuple[str, str, str]:
    """The built-in prompt of `classify`.

    Args:
        labels: The labels.
        multi: Any number of them may fit.
        explain: A reason is asked for.
        system: The user's own system text; it goes first.
        listed: Name the labels. A small model whose labels are scored (`Labels.choices`) is
            better off without: it repeats what it has just read instead of judging the text.
            (SmolLM2-135M, five intents of banking77, 160 rows, contextual calibration: 0.78
            correct without the list, 0.43 with it; it writes no worse a label without it
            either, 0.44 against 0.41.) No effect where a list is needed: `multi`, `explain`.

    Returns:
        System text; the text before the row's own; the text after it. All are part of the key.

    Examples:
        >>> from llmframe.labels import labels
        >>> system, before, after = instructions(labels(["bug", "feature"]))
        >>> print(system)
        Classify the text into one of these categories:
        - bug
        - feature
        <BLANKLINE>
        Answer with the exact name of the category that fits best.
        >>> before, after
        ('Text: ', '')
    """
    parts = [system] if system else []
    if not (listed or multi or explain):
        parts.append("Classify the text.")
        return "\n\n".join(parts), "Text: ", ""
    task = "Say which of these categories fit" if multi else "Classify the text into one of these"
    lines = map(_line, labels.written, labels.texts, labels.descriptions)
    parts.append("\n".join([f"{task} the text:" if multi else f"{task} categories:", *lines]))
    name = "exact name" if labels.codes is None else "code"
    answer = (
        f"Answer with the {name}s of all that fit; none may."
        if multi
        else f"Answer with the {name} of the category that fits best."
    )
    if explain:
        answer = f"Give the reason in one short sentence first. {answer}"
    parts.append(answer)
    return "\n\n".join(parts), "Text: ", ""


def _line(written: str, text: str, described: str | None) -> str:
    if written == text:
        return f"- {text}: {described}" if described else f"- {text}"
    return f"- {written}: {text} ({described})" if described else f"- {written}: {text}"
