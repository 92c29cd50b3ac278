"""`/v1/responses` in the words of chat completions, there and back. Pure.

The rest of the engine speaks chat completions only: bodies are built in that shape and changed
here on their way out, replies are changed here before they are read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from llmframe.requests import Message

__all__ = ["as_chat", "fields_of", "is_response", "messages_of"]

_FINISH: Final = {"max_output_tokens": "length", "content_filter": "content_filter"}


def fields_of(body: Mapping[str, Any]) -> dict[str, Any]:
    """A chat completion's body, without its messages, as that of a response.

    Examples:
        >>> fields_of({"model": "m", "max_tokens": 9})
        {'model': 'm', 'store': False, 'max_output_tokens': 9}
    """
    # Kept for thirty days otherwise, where anybody with a key of the project can read it.
    fields: dict[str, Any] = {"model": body["model"], "store": False}
    for name, value in body.items():
        if name in {"max_tokens", "max_completion_tokens"}:
            fields["max_output_tokens"] = value
        elif name == "response_format" and isinstance(value, dict) and "json_schema" in value:
            fields["text"] = {"format": {"type": value["type"], **value["json_schema"]}}
        elif name == "logprobs":
            fields["include"] = ["message.output_text.logprobs"]
        else:
            fields[name] = value
    return fields


def messages_of(messages: Sequence[Message]) -> list[Message]:
    """Messages as input items: only the types of their parts have other names."""
    return [
        message
        if isinstance(message["content"], str)
        else {**message, "content": [_part(part, message["role"]) for part in message["content"]]}
        for message in messages
    ]


def _part(part: Any, role: str) -> Any:
    if not isinstance(part, dict) or part.get("type") != "text":
        return part
    return {**part, "type": "output_text" if role == "assistant" else "input_text"}


def is_response(read: Mapping[str, Any]) -> bool:
    """Whether a decoded body is a response, not a chat completion."""
    return read.get("object") == "response" or isinstance(read.get("output"), list)


def as_chat(read: Mapping[str, Any]) -> dict[str, Any]:
    """A response as the chat completion that says the same. Total: what is odd is left out."""
    texts, tokens, thoughts, refusal, calls = [], [], [], None, []
    output = read.get("output")
    for item in output if isinstance(output, list) else ():
        if not isinstance(item, dict):
            continue
        if item.get("type") == "function_call":
            calls.append({"function": item})
        elif item.get("type") == "reasoning":
            thoughts += _texts(item.get("summary"))
        elif item.get("type") == "message":
            texts += _texts(item.get("content"))
            tokens += _tokens(item.get("content"))
            refusal = refusal or _refusal(item.get("content"))
    message: dict[str, Any] = {"content": "".join(texts) if texts else None, "refusal": refusal}
    if calls:
        message["tool_calls"] = calls
    if thoughts:
        message["reasoning"] = "\n".join(thoughts)
    chat = {name: read.get(name) for name in ("id", "model", "error")}
    if isinstance(output, list):
        logprobs = {"content": tokens} if tokens else None
        chat["choices"] = [
            {"message": message, "finish_reason": _finish(read), "logprobs": logprobs}
        ]
    usage = read.get("usage")
    if isinstance(usage, dict):
        chat["usage"] = {
            "prompt_tokens": usage.get("input_tokens"),
            "completion_tokens": usage.get("output_tokens"),
            "prompt_tokens_details": usage.get("input_tokens_details"),
            "completion_tokens_details": usage.get("output_tokens_details"),
        }
    return chat


def _finish(read: Mapping[str, Any]) -> str | None:
    status = read.get("status")
    if status == "incomplete":
        details = read.get("incomplete_details")
        reason = details.get("reason") if isinstance(details, dict) else None
        return _FINISH.get(reason, reason) if isinstance(reason, str) else "incomplete"
    return "stop" if status in {None, "completed"} else str(status)


def _texts(parts: object) -> list[str]:
    if not isinstance(parts, list):
        return []
    return [
        part["text"]
        for part in parts
        if isinstance(part, dict)
        and isinstance(part.get("text"), str)
        and part.get("type") in {"output_text", "text", "summary_text"}
    ]


def _tokens(parts: object) -> list[Any]:
    """The tokens of the texts with their log-probabilities, as a chat completion has them."""
    found: list[Any] = []
    for part in parts if isinstance(parts, list) else ():
        if isinstance(part, dict) and isinstance(part.get("logprobs"), list):
            found += part["logprobs"]
    return found


def _refusal(parts: object) -> str | None:
    for part in parts if isinstance(parts, list) else ():
        if isinstance(part, dict) and isinstance(part.get("refusal"), str):
            return str(part["refusal"])
    return None
