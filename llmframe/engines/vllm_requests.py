"""What vLLM is asked and what it says, in the words of whichever release is installed. No engine.

Names moved between 0.10 and 0.33 (guided decoding became structured outputs), so they are looked
for rather than told from a version.
"""

from __future__ import annotations

import difflib
import inspect
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from llmframe.engines.control_tokens import Literals
from llmframe.engines.local_scoring import LabelTree
from llmframe.errors import ModelError
from llmframe.requests import Message, Request
from llmframe.results import Failure, Result, Usage
from llmframe.schemas import dialects

__all__ = ["LEAD", "Asked", "Prompts", "Refused", "Words", "result_of"]

LEAD: Final = "Category:"
"""How the reply starts where labels are scored, as on the embedded engine."""

_STRUCTURED: Final = {
    "structured_outputs": "StructuredOutputsParams",
    "guided_decoding": "GuidedDecodingParams",
}
"""The parameter that holds a schema and its class, the newest first."""

_MOST_SCORED: Final = 128
"""Token ids whose probabilities one request may ask for (vLLM's own bound)."""


class Refused(Exception):  # noqa: N818 - carries the verdict on one row
    """This request cannot be sent."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message)
        self.failure = failure


class Prompts:
    """Conversations as tokens: the model's chat template, or plain text where it has none.

    Args:
        tokenizer: As vLLM loaded it.
        window: Tokens of prompt and reply together.
        template: A chat template in place of the model's own.
    """

    def __init__(self, tokenizer: Any, window: int, template: str | None = None) -> None:
        self.window = window
        self._tokenizer = tokenizer
        self._template = template
        own = template or getattr(tokenizer, "chat_template", None)
        self._chat = bool(own)
        self._control = _control_tokens(tokenizer, str(own)) if own else None
        self._trees: dict[tuple[str, ...], LabelTree] = {}

    def tokens(
        self, messages: Sequence[Message], options: Mapping[str, Any], lead: str = ""
    ) -> list[int]:
        """Token ids of a conversation, up to where the reply starts.

        Args:
            messages: The conversation.
            options: Arguments of the chat template.
            lead: Text that the reply starts with.

        Raises:
            Refused: The template does not take it, it holds more than text, it is empty, or it
                leaves no room for a reply.
        """
        told = [{**message, "content": _text(message["content"])} for message in messages]
        if not any(message["content"] for message in told):
            raise Refused(Failure("prompt_error", "the prompt is empty: nothing is asked"))
        if self._chat:
            ids = self._turns(told, options, lead)
        else:
            plain = "\n\n".join(message["content"] for message in told)
            ids = self._encode(f"{plain}\n{lead}" if lead else plain, special=True)
        if not ids:
            raise Refused(Failure("prompt_error", "the prompt is empty, which vLLM refuses"))
        if len(ids) >= self.window:
            raise Refused(
                Failure(
                    "prompt_too_long",
                    f"the prompt has {len(ids):,} tokens and the window {self.window:,}, reply "
                    f"included. Shorten the text, or give lf.VLLM(max_model_len=…) up to what the "
                    f"model was trained on.",
                )
            )
        return ids

    def labels(self, choices: tuple[str, ...]) -> LabelTree | None:
        """Tokens of each label as they follow `LEAD`; None where they are too many to score."""
        if choices not in self._trees:
            before = self._encode(LEAD, special=False)
            tree = LabelTree([self._label(text, before) for text in choices])
            self._trees = {choices: tree}
        tree = self._trees[choices]
        widest = max(map(len, tree.places.values()))
        return tree if widest <= _MOST_SCORED else None

    def _label(self, text: str, before: list[int]) -> list[int]:
        written = f" {text}"
        tokens = self._encode(LEAD + written, special=False)
        if tokens[: len(before)] == before:
            return tokens[len(before) :]
        return self._encode(written, special=False)

    def _turns(self, messages: list[Message], options: Mapping[str, Any], lead: str) -> list[int]:
        """The filled chat template; a cell cannot end the turn that it stands in."""
        kept = Literals()
        if self._control is not None:
            messages = [
                {**m, "content": self._control.sub(lambda found: kept.put(found[0]), m["content"])}
                for m in messages
            ]
        made = self._rendered(messages, options)
        if isinstance(made, list):
            return made
        ids: list[int] = []
        for piece, literal in kept.pieces(made + lead):
            # No half of a control token is one.
            for part in (piece[:1], piece[1:]) if literal else (piece,):
                ids += self._encode(part, special=False)
        return ids

    def _encode(self, text: str, special: bool) -> list[int]:
        return list(self._tokenizer.encode(text, add_special_tokens=special))

    def _rendered(self, messages: list[Message], options: Mapping[str, Any]) -> str | list[int]:
        given = dict(options)
        if self._template is not None:
            given["chat_template"] = self._template
        render = self._tokenizer.apply_chat_template
        try:
            made = render(messages, tokenize=False, add_generation_prompt=True, **given)
        except Exception as error:  # whatever a template raises: it is a program of the model's
            if messages[0]["role"] == "system" and len(messages) > 1:
                # Some templates know no system message (Gemma's first ones).
                first, second, *others = messages
                merged = {**second, "content": f"{first['content']}\n\n{second['content']}"}
                return self._rendered([merged, *others], options)
            raise Refused(
                Failure("prompt_error", f"the chat template refuses the conversation: {error}")
            ) from None
        return made if isinstance(made, str) else list(made)


def _control_tokens(tokenizer: Any, template: str) -> re.Pattern[str] | None:
    """What a tokenizer reads as one token that structures a conversation.

    Not every one is marked as special (DeepSeek's opening of a turn is not), nor is every other
    one structure (Gemma has a token for ``<table>``): what the chat template writes is.
    """
    added = (getattr(tokenizer, "added_tokens_decoder", None) or {}).values()
    names = {token.content for token in added if token.special or token.content in template}
    names = {name for name in names if len(name) > 1 and not name.isspace()}
    # The longest first: one may begin with another.
    ordered = sorted(names, key=len, reverse=True)
    return re.compile("|".join(map(re.escape, ordered))) if ordered else None


def _text(content: Any) -> str:
    if isinstance(content, str):
        return content
    parts = [part["text"] for part in content if part.get("type") == "text"]
    if len(parts) < len(content):
        raise Refused(
            Failure(
                "prompt_error",
                "the message holds more than text, which lf.VLLM does not send. Serve the model "
                "(vllm serve) and use lf.OpenAI(base_url=…).",
            )
        )
    return "\n".join(parts)


class Asked:
    """One request as it goes to vLLM: one prompt, or one a place of the label tree.

    Attributes:
        parts: Pairs of a prompt, as the engine takes it, and ``SamplingParams``.
        tree: The labels' tokens where they are scored.
        fills: The reply may take all that the prompt leaves of the window.
    """

    __slots__ = ("fills", "parts", "tree")

    def __init__(
        self, parts: list[tuple[Any, Any]], tree: LabelTree | None = None, fills: bool = False
    ) -> None:
        self.parts = parts
        self.tree = tree
        self.fills = fills


def _raw_prompt(tokens: list[int]) -> dict[str, list[int]]:
    return {"prompt_token_ids": tokens}


class Words:
    """The installed release's sampling parameters.

    Args:
        library: The module ``vllm``.

    Raises:
        ModelError: It is of a release that is not known here.
    """

    def __init__(self, library: Any) -> None:
        from vllm import inputs, sampling_params

        # The newer releases want to be told that it is ready for the engine.
        self._prompt = getattr(inputs, "tokens_input", _raw_prompt)
        self._params = library.SamplingParams
        self._names = set(inspect.signature(self._params).parameters)
        self._final = sampling_params.RequestOutputKind.FINAL_ONLY
        field = next((name for name in _STRUCTURED if name in self._names), None)
        if field is None:
            version = getattr(library, "__version__", "of an unknown version")
            raise ModelError(
                f"vLLM {version} has no structured outputs under a name that is known here "
                f"({', '.join(_STRUCTURED)}). Install another: pip install 'llmframe[vllm]'."
            )
        self._field = field
        self._structured = getattr(sampling_params, _STRUCTURED[field])
        self._schema: tuple[Any, str] = (None, "")

    @property
    def scores(self) -> bool:
        """Whether the probabilities of given tokens can be had."""
        return "logprob_token_ids" in self._names

    def ask(self, request: Request, prompts: Prompts) -> Asked:
        """A request in vLLM's words.

        Raises:
            Refused: This row cannot be sent, or no row of the job can.
        """
        options, own = self._extra(request)
        if request.choices is not None and self.scores:
            tree = prompts.labels(request.choices)
            if tree is not None:
                return self._scored(request, prompts, options, tree)
        ids = prompts.tokens(request.messages, options)
        sampling, room = request.sampling, prompts.window - len(ids)
        given: dict[str, Any] = {
            "temperature": 0.0 if sampling.temperature is None else sampling.temperature,
            "max_tokens": min(sampling.max_tokens or room, room),
            "output_kind": self._final,
            **own,
        }
        if sampling.seed is not None:
            given["seed"] = sampling.seed
        if request.schema is not None:
            given[self._field] = self._structured(json=self._wire(request.schema))
        # A sample a request: vLLM takes `n=8` apart into eight of its own, which share the prompt's
        # cache as eight that follow each other do (benchmarks/vllm_order.py).
        fills = given["max_tokens"] == room
        return Asked([(self._prompt(ids), self._made(given))], fills=fills)

    def _scored(
        self, request: Request, prompts: Prompts, options: Mapping[str, Any], tree: LabelTree
    ) -> Asked:
        ids = prompts.tokens(request.messages, options, LEAD)
        if len(ids) + tree.depth >= prompts.window:
            raise Refused(
                Failure(
                    "prompt_too_long",
                    f"the prompt and the longest label have {len(ids) + tree.depth:,} tokens and "
                    f"the window {prompts.window:,}. Shorten the text.",
                )
            )
        parts = []
        for path, tokens in tree.places.items():
            given = {
                "temperature": 0.0,
                "max_tokens": 1,
                "logprobs": len(tokens),
                "logprob_token_ids": list(tokens),
                "detokenize": False,
                "output_kind": self._final,
            }
            parts.append((self._prompt([*ids, *path]), self._made(given)))
        return Asked(parts, tree)

    def _made(self, given: Mapping[str, Any]) -> Any:
        try:
            return self._params(**given)
        except Exception as error:  # of a class of vLLM's own since 0.32
            # The parameters are the same in every row.
            name = getattr(error, "parameter", None)
            told = Failure("invalid_request", _said(error), fatal=True, param=name)
            raise Refused(told) from None

    def _wire(self, schema: Mapping[str, Any]) -> str:
        # The same object in every request of a job.
        if self._schema[0] is not schema:
            self._schema = (schema, json.dumps(dialects.xgrammar(schema)))
        return self._schema[1]

    def _extra(self, request: Request) -> tuple[dict[str, Any], dict[str, Any]]:
        extra = dict(request.sampling.extra or {})
        # A model that thinks first would do so outside the grammar, or in front of the label.
        options = {"enable_thinking": False, **extra.pop("chat_template_kwargs", {})}
        for name in extra:
            if name not in self._names:
                near = difflib.get_close_matches(name, self._names, 1)
                hint = f"; did you mean {near[0]!r}?" if near else ""
                told = f"extra={{{name!r}: …}} is no sampling parameter of this vLLM{hint}"
                raise Refused(Failure("invalid_request", told, fatal=True, param=name))
        return options, extra


def _said(error: Exception) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__


def result_of(request: Request, asked: Asked, outputs: Sequence[Any]) -> Result:
    """What vLLM said to one request.

    Args:
        request: The request.
        asked: As it was sent.
        outputs: Its ``RequestOutput`` objects, one a part, in the order of the parts.
    """
    if asked.tree is not None:
        return _scores(request, asked.tree, outputs)
    [output] = outputs
    reply = output.outputs[0]
    usage = Usage(
        input_tokens=len(output.prompt_token_ids),
        output_tokens=len(reply.token_ids),
        cached_tokens=getattr(output, "num_cached_tokens", None) or 0,
    )
    cut = reply.finish_reason == "length" and asked.fills
    finish = "window" if cut else reply.finish_reason
    result = Result(request.key, text=reply.text, finish=finish, usage=usage)
    if reply.finish_reason in {"abort", "error"}:
        told = f"vLLM ended this request with {reply.finish_reason!r}"
        return result.failed(Failure("provider_error", told, retryable=True))
    return result


def _scores(request: Request, tree: LabelTree, outputs: Sequence[Any]) -> Result:
    shares: dict[tuple[int, ...], Mapping[int, float]] = {}
    for path, output in zip(tree.places, outputs, strict=True):
        found = output.outputs[0].logprobs[0]
        shares[path] = {token: found[token].logprob for token in tree.places[path]}
    first = outputs[0]
    usage = Usage(
        input_tokens=len(first.prompt_token_ids),
        output_tokens=1,
        cached_tokens=getattr(first, "num_cached_tokens", None) or 0,
    )
    scores = tree.score(lambda path, tokens: shares[path])
    return Result(request.key, finish="stop", usage=usage, choice_logprobs=scores)
