"""What the verbs mean: arguments in, a `Prepared` call out; everything wrong is said here.

Each ``prepare_…`` checks its arguments, and sends and stores nothing. `accessor` gives them to
frames, Series and namespaces.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final, Literal, Unpack

from llmframe import frames, joins
from llmframe import labels as labelling
from llmframe.calls import Call, content_free
from llmframe.columns import companion, name_text
from llmframe.engines import engine_for, homes
from llmframe.engines.base import BatchEngine, Engine
from llmframe.errors import SchemaError, StoreError, warn_user
from llmframe.keywords import Asked, Common, asked
from llmframe.label_prompts import instructions
from llmframe.lanes import twin_of
from llmframe.panels import Panel
from llmframe.plans import ceiling
from llmframe.prepared import Prepared
from llmframe.prompts import Source, build, source_template
from llmframe.requests import Sampling
from llmframe.schemas.forms import Form, form, pandera_names
from llmframe.shots import shots
from llmframe.submits import job
from llmframe.sureness import check_cascade, check_fitted, check_unsure
from llmframe.verdicts import present

__all__ = [
    "engine_of",
    "prepare",
    "prepare_classify",
    "prepare_extract",
    "prepare_filter",
    "prepare_map",
]


_BELOW: Final = 0.8
_CALIBRATIONS: Final = ("auto", "contextual", "batch", "none")


def _sampling(given: Asked) -> Sampling:
    return Sampling(
        None if given.temperature is None else float(given.temperature),
        None if given.max_tokens is None else int(given.max_tokens),
        None if given.seed is None else int(given.seed),
        None if given.extra is None else dict(given.extra),
    )


def _identity(engine: Engine | BatchEngine) -> dict[str, str]:
    return {"provider": engine.name, "model": engine.model, **engine.identity()}


def prepare_map(data: Any, prompt: Any, schema: Any = None, **common: Unpack[Common]) -> Prepared:
    """`map`: one reply a row, as text or as the fields of `schema`."""
    given = asked("map", common, ("prompt", "schema"))
    shape = _shape("map", data, prompt, schema, given)
    return prepare("map", data, prompt, shape, given, "response")


def prepare_extract(data: Any, source: Any, schema: Any, **common: Unpack[Common]) -> Prepared:
    """`extract`: the fields of `schema`, as the text of `source` gives them."""
    given = asked("extract", common, ("source", "schema"))
    if schema is None:
        raise SchemaError("extract() needs a schema, such as {'name': str, 'price': float}.")
    table = frames.Table(data)
    text = source_template(source, table.names, table.index_names)
    prompt = text.wrapped(
        "Extract the requested fields from the text between the lines. Where the text does not "
        "say, answer null if the field allows it; make nothing up.\n-----\n",
        "\n-----",
    )
    shape = _shape("extract", data, prompt, schema, given)
    return prepare("extract", data, prompt, shape, given, "response")


def _shape(verb: str, data: Any, prompt: Any, schema: Any, given: Asked) -> Form:
    """The form of a schema, less the columns of a pandera one that the frame has already."""
    have = present(data, pandera_names(schema) or ())
    if not have:
        return form(schema, name="response")
    table = frames.Table(data)
    bound = build(prompt, table.names, table.index_names, blank=True)
    read = () if callable(prompt) else bound.columns
    used = {name_text(table.names[place]) for place in read if place >= 0}
    own = joins.written_by(data, verb, _call_of)
    renamed = given.into if isinstance(given.into, Mapping) else {}

    def is_output(name: str) -> bool:
        return name in renamed or given.if_exists != "raise" or own(name)

    # What the prompt reads is no answer to it.
    have = [name for name in have if name in used or not is_output(name)]
    return form(schema, name="response", have=have)


def prepare_filter(
    data: Any, condition: Any, *, keep_failed: bool = False, **common: Unpack[Common]
) -> Prepared:
    """`filter`: does the condition hold for the row?"""
    given = asked("filter", common, ("condition", "keep_failed"))
    if given.into is not None:
        raise ValueError("filter() adds no column, so it takes no into=. Use map(…, bool).")
    prompt = condition
    if isinstance(condition, str):
        prompt = Source("template", condition).wrapped(
            "Decide whether this holds, and answer true or false.\n\n"
        )
    return prepare(
        "filter", data, prompt, form(bool, name="holds"), given, "holds", keep_failed=keep_failed
    )


def prepare_classify(
    data: Any,
    source: Any,
    labels: Any,
    *,
    multi: bool = False,
    explain: bool = False,
    confidence: bool = False,
    calibration: Literal["auto", "contextual", "batch", "none"] | Any = "auto",
    other: Any = None,
    unsure_below: float | None = None,
    escalate_to: Any = None,
    below: float = _BELOW,
    **common: Unpack[Common],
) -> Prepared:
    """`classify`: one of `labels` a row, or any number of them with `multi`."""
    own = ("source", "labels", "multi", "explain", "confidence", "calibration")
    given = asked("classify", common, (*own, "other", "unsure_below", "escalate_to", "below"))
    if escalate_to is not None:
        check_cascade(unsure_below, below, multi or explain, given)
        told: dict[str, Any] = {**common, "source": source, "labels": labels, "other": other}
        # What was fitted to one model's confidences says nothing about another's.
        plain = calibration if isinstance(calibration, str) else "auto"
        stronger = prepare_classify(data, **{**told, "model": escalate_to, "calibration": plain})
        told["errors"] = "coerce"  # what fails goes on, too
        first = prepare_classify(data, unsure_below=below, calibration=calibration, **told)
        return replace(first, stronger=stronger)
    if below != _BELOW:
        raise ValueError(
            f"below={below!r} says which rows go on to escalate_to=, and there is none. To leave "
            f"such rows without a label: unsure_below={below!r}."
        )
    fitted = None if isinstance(calibration, str) else getattr(calibration, "fitted", None)
    if fitted is not None:
        calibration = fitted.method or "auto"
    elif calibration not in _CALIBRATIONS:
        raise ValueError(
            f"calibration={calibration!r}: expected 'auto', 'contextual', 'batch', 'none', or a "
            f"fit: lf.calibration(out, 'label', 'truth').fit()."
        )
    if multi and confidence:
        raise ValueError("multi=True gives no confidence: there is no one label to be sure of.")
    table = frames.Table(data)
    known = labelling.labels(labels)
    if other is not None and other is not False:
        if multi:
            raise ValueError("other= with multi=True: where no label fits, the list is empty.")
        known = labelling.with_other(known, other)
    engine = engine_of(given)
    if fitted is not None:
        check_fitted(fitted, known, f"{engine.name}/{engine.model}")
    scored = not multi and not explain
    if unsure_below is not None:
        check_unsure(unsure_below, scored, engine)
        confidence = True
    if not engine.limits.in_process:
        known = labelling.coded(known)
    if confidence and not (scored and engine.limits.choices):
        why = "explain=True" if not scored else f"{engine.name}/{engine.model}"
        warn_user(
            f"confidence=True: {why} gives no probabilities of the labels, so the confidence will "
            f"be NA in every row."
        )
    # A small model whose labels are scored judges better without the list before its eyes.
    listed = not (scored and engine.limits.choices and engine.limits.calibrate)
    system, before, after = instructions(
        known, multi=multi, explain=explain, system=given.system, listed=listed
    )
    text = source_template(source, table.names, table.index_names)
    choices = (known.written if listed else known.choices) if scored else None
    if calibration == "auto":
        calibration = "contextual" if engine.limits.calibrate else "none"
    free = content_free(before, after, system) if scored and calibration == "contextual" else ()
    return prepare(
        "classify",
        data,
        text.wrapped(before, after),
        known.form(name="label", multi=multi, explain=explain),
        given,
        "label",
        engine=engine,
        system=system,
        labels=known,
        choices=choices,
        spoken=None if listed else choices,
        calibration=calibration,
        fitted=fitted,
        confidence=confidence,
        unsure_below=unsure_below,
        content_free=free,
    )


def engine_of(given: Asked) -> Engine | BatchEngine:
    """Who answers, live where the call says so."""
    engine = engine_for(given.model, batch=given.batch)
    if given.batch is False and isinstance(engine, BatchEngine):
        live = getattr(engine, "live", None)
        engine = live() if callable(live) else twin_of(engine)
    homes.enter(engine)
    return engine


def prepare(
    verb: str,
    data: Any,
    prompt: Any,
    shape: Form,
    given: Asked,
    main: str,
    *,
    engine: Engine | BatchEngine | None = None,
    system: str | None = None,
    keep_failed: bool = False,
    more: tuple[str, ...] = (),
    spoken: Sequence[str] | None = None,
    **own: Any,
) -> Prepared:
    """What all verbs share, once the prompt and the form are known.

    Args:
        verb: Its name.
        data: DataFrame or Series.
        prompt: As `llmframe.prompts.build` takes it.
        shape: What a reply looks like.
        given: The common keywords.
        main: Name of the main output column.
        engine: Who answers; None: the one that `given` names.
        system: The built-in system text, the user's in it; None: the user's alone.
        keep_failed: Of `filter`.
        more: Sentences for the plan.
        spoken: What examples answer with, a text a label; None: as JSON.
        **own: What the verb alone has in its `Call`.
    """
    engine = engine or engine_of(given)
    table = frames.Table(data)
    if given.flatten:
        shape = shape.flat()
    panel: Panel | None = own.get("panel")
    fields = [field.name for field in (shape.fields if panel is None else panel.fields())]
    ours = panel is not None or verb == "classify" or shape.bare
    columns = _columns(fields, given.into, main, bool(own.get("confidence")), ours)
    # Examples show the model's own fields, in the order in which it writes them.
    by_field = dict(zip(fields, columns, strict=False))
    answers = [by_field.get(field.name, field.name) for field in shape.fields]
    bind = partial(
        build,
        prompt,
        system=given.system if system is None else system,
        examples=shots(given.examples, shape, answers, own.get("labels"), panel, spoken),
        blank=given.missing == "blank",
    )
    bound = bind(table.names, table.index_names)
    # What the model answers to no content has to be told behind the same examples: they are what
    # biases it most (Zhao et al., "Calibrate Before Use", 2021).
    free = tuple((*bound.shared, said[-1]) for said in own.pop("content_free", ()))
    prefix = given.into if isinstance(given.into, str) else "llm"
    asked_rows = None
    if verb != "filter":
        extra = joins.detail_names(prefix) if given.details else []
        ours_by = joins.written_by(data, verb, _call_of)
        frames.check_output(data, [*columns, *extra], if_exists=given.if_exists, own=ours_by)  # type: ignore[arg-type]
    call = Call(
        verb=verb,
        bind=bind,
        form=shape,
        identity=_identity(engine),
        sampling=_sampling(given),
        ceiling=ceiling(shape),
        missing=given.missing,
        dedupe=given.dedupe,
        repairs=given.repairs,
        retry=given.retry,
        errors=given.errors,
        columns=tuple(columns),
        code=bound.code or shape.code,
        look={
            "dtype_backend": given.dtype_backend,
            "details": given.details,
            "prefix": prefix,
            "keep_failed": keep_failed,
            "fill": given.if_exists == "fill",
            "if_exists": given.if_exists,
        },
        around=bind.keywords,
        content_free=free,
        **own,
    )
    if verb != "filter" and given.if_exists == "fill":
        asked_rows = frames.unfilled(data, call.filled)
    for name, field in joins.outputs(call) if asked_rows is not None else ():
        frames.refuse_unfit(data, name, field, given.dtype_backend)  # type: ignore[arg-type]
    return Prepared(
        data,
        table,
        call,
        engine,
        asked=asked_rows,
        keep_failed=keep_failed,
        if_exists=given.if_exists,
        dtype_backend=given.dtype_backend,
        details=given.details,
        prefix=prefix,
        progress=given.progress,
        budget=given.budget,
        concurrency=given.concurrency or getattr(engine, "concurrency", None),
        cache=given.cache,
        advice=(*more, *_advice(given, call.asks)),
    )


def _advice(given: Asked, asks: int) -> tuple[str, ...]:
    if given.temperature and given.dedupe and asks == 1:
        return (
            "identical rows share one request and one answer; with temperature > 0, "
            "dedupe=False draws one for each.",
        )
    return ()


def _columns(
    names: list[str], into: Any, main: str, confidence: bool, ours: bool
) -> list[Hashable]:
    """Output column of each field; names follow the verb, never the count.

    Args:
        names: The fields.
        into: As the user gave it.
        main: The verb's main column.
        confidence: There is one more column for it.
        ours: The fields are the verb's: a main one and its companions; else the user's.
    """
    if isinstance(into, Mapping):
        unknown = [key for key in into if key not in names]
        if unknown:
            raise SchemaError(
                f"into={dict(into)!r}: there is no field {unknown[0]!r}; "
                f"fields are {', '.join(map(repr, names))}."
            )
        base = into.get(main, main)
        usual = {name: companion(base, name) if ours and name != main else name for name in names}
        columns: list[Hashable] = [into.get(name, usual[name]) for name in names]
    elif into is not None and not isinstance(into, str | tuple):
        raise SchemaError(f"into={into!r}: expected a column name, or a dict field → column.")
    elif ours:
        base = main if into is None else into
        columns = [base if name in {main, "response"} else companion(base, name) for name in names]
    else:
        base = main
        prefix = "" if into is None else str(into).removesuffix("_") + "_"
        columns = [prefix + name for name in names]
    if confidence:
        columns.append(companion(base, "confidence"))
    twice = [name for name in columns if columns.count(name) > 1]
    if twice:
        raise SchemaError(f"two fields would go into column {twice[0]!r}; rename one with into=.")
    return columns


def _call_of(name: str) -> Call | None:
    try:
        return job(name).call
    except StoreError:
        return None
