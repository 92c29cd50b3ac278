"""Prices of models, and what a reply cost. Always offline; a price that is not known is None."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from llmframe.options import get_options
from llmframe.results import Usage

if TYPE_CHECKING:
    from genai_prices.types import PriceCalculation

__all__ = ["Price", "Rate", "cache_savings", "price"]


@dataclass(frozen=True, slots=True)
class Rate:
    """US$ per million tokens of one kind.

    Attributes:
        base: The rate, where no tier applies.
        tiers: ``(start, rate)``, ascending: with more than `start` input tokens in the request,
            `rate` holds for all of its tokens of this kind.
    """

    base: float
    tiers: tuple[tuple[int, float], ...] = ()

    def at(self, input_tokens: int) -> float:
        """The rate for a request of that many input tokens."""
        rate = self.base
        for start, dearer in self.tiers:
            if input_tokens > start:
                rate = dearer
        return rate


@dataclass(frozen=True, slots=True)
class Price:
    """What a model costs.

    Attributes:
        input: Rate of input tokens.
        output: Rate of output tokens, reasoning included.
        cached: Rate of input tokens read from the provider's cache; None: as any other.
        cache_write: Rate of input tokens written to the cache; None: as any other.
        cache_write_1h: Rate of those written for an hour; None: `cache_write`.
        request: US$ for each request, whatever its tokens.
        note: What to know about it, such as where it comes from; may be empty.
        guess: What of it is no known price but an assumption; empty where it is known.

    Examples:
        >>> Price(Rate(0.4), Rate(1.6)).cost(Usage(input_tokens=1_000_000))
        0.4
    """

    input: Rate
    output: Rate
    cached: Rate | None = None
    cache_write: Rate | None = None
    cache_write_1h: Rate | None = None
    request: float = 0.0
    note: str = ""
    guess: str = ""

    def cost(self, usage: Usage) -> float:
        """US$ of one request.

        Args:
            usage: Its tokens. One request at a time: tiers go by the size of a request, so the
                cost of a sum of usages is not the sum of the costs.
        """
        size = usage.input_tokens
        plain = size
        total = usage.output_tokens * self.output.at(size)
        written = usage.cache_write_tokens
        for_hours = min(usage.cache_write_1h_tokens, written)
        for rate, tokens in (
            (self.cached, usage.cached_tokens),
            (self.cache_write_1h or self.cache_write, for_hours),
            (self.cache_write, written - for_hours),
        ):
            if rate is not None and tokens:
                # Some servers report more cached tokens than input; never a negative charge.
                tokens = min(tokens, plain)
                plain -= tokens
                total += tokens * rate.at(size)
        total += plain * self.input.at(size)
        return total / 1e6 + self.request

    def text(self) -> str:
        """For a plan: ``US$0.40 in, US$1.60 out per million tokens``."""
        if self == FREE:
            return "free (runs in this process)"
        parts = [f"US${_money(self.input.base)} in"]
        if self.cached is not None:
            parts.append(f"US${_money(self.cached.base)} cached")
        parts.append(f"US${_money(self.output.base)} out")
        text = ", ".join(parts) + " per million tokens"
        if self.request:
            text += f" and US${_money(self.request * 1000)} per thousand requests"
        starts = sorted({start for start, _ in self.input.tiers + self.output.tiers})
        if starts:
            text += f", more above {starts[0]:,} input tokens a request"
        told = "; ".join(filter(None, (self.note, self.guess)))
        return f"{text} ({told})" if told else text


def cache_savings(price: Price | None, usage: Usage | None) -> float:
    """US$ that the provider's prompt cache saved on one request; negative where it only wrote."""
    if price is None or usage is None or not (usage.cached_tokens or usage.cache_write_tokens):
        return 0.0
    return price.cost(Usage(usage.input_tokens, usage.output_tokens)) - price.cost(usage)


FREE: Final = Price(Rate(0.0), Rate(0.0))


def _money(amount: float) -> str:
    return f"{amount:.2f}" if round(amount, 2) == amount else f"{amount:.6g}"


def price(
    provider: str,
    model: str,
    *,
    batch: bool = False,
    in_process: bool = False,
    base_url: str | None = None,
) -> Price | None:
    """The price of a model, or None where it is not known (never 0 in its place).

    Looked up in this order: ``set_options(prices=…)``, by ``"provider/model"``, then by the
    model alone; 0 for an engine in this process; the data that comes with `genai-prices`.

    Args:
        provider: Name of the engine, such as ``"openai"``.
        model: Name of the model, an alias or a snapshot.
        batch: For the provider's batch API. Where the user states no batch price: half of the
            live one at the providers that document this, else the live one; `Price.guess` says so.
        in_process: The engine runs in this process.
        base_url: Where a server was named: the price is that of the provider whose own address
            it is, whatever protocol it speaks, and unknown for any other server.

    Raises:
        ValueError: A price in the options is neither a pair of numbers nor a dict of rates.

    Examples:
        >>> import llmframe as lf
        >>> with lf.set_options(prices={"openai/my-model": (0.25, 2.0)}):
        ...     price("openai", "my-model").text()
        'US$0.25 in, US$2.00 out per million tokens (your price)'
        >>> rates = {"input": 0.25, "output": 2.0, "batch_input": 0.1, "batch_output": 0.8}
        >>> with lf.set_options(prices={"my-model": rates}):
        ...     price("openai", "my-model", batch=True).text()
        'US$0.10 in, US$0.80 out per million tokens (your price)'
        >>> price("openai", "no-such-model") is None
        True
    """
    prices = get_options().prices or {}
    for name in (f"{provider}/{model}", model):
        if name in prices:
            return _own(name, prices[name], batch, partial(_halves, provider, base_url))
    if in_process:
        return FREE
    found = _known(provider, model, batch, base_url)
    return None if found is None else _from_data(found, batch)


_LIVE: Final = ("input", "output", "cached_input", "cache_write")
_RATES: Final = (*_LIVE, *(f"batch_{name}" for name in _LIVE))
_HALF: Final = {"openai": "OpenAI", "anthropic": "Anthropic"}
"""Providers whose documents say that a batch costs half, whatever the model."""


def _own(name: str, given: Any, batch: bool, half: Callable[[], str | None]) -> Price:
    """The user's price; `half` names the provider where its batches are known to cost half."""
    rates = _rates(name, given)
    live = [rates.get(rate) for rate in _LIVE]
    if not batch:
        return _price(live, "your price")
    stated = [rates.get(f"batch_{rate}") for rate in _LIVE]
    guess, factor = "", 1.0
    if stated[0] is None:
        provider = half()
        guess = f"no batch price is known for {name}: it is counted at the live price"
        if provider is not None:
            guess = f"the batch price of {name} is assumed to be half of yours, as {provider} says"
            factor = 0.5
    elif live[0]:
        factor = stated[0] / live[0]  # of what is read from and written to the cache
    filled = [
        rate if rate is not None else None if other is None else other * factor
        for rate, other in zip(stated, live, strict=True)
    ]
    return _price(filled, "your price", guess)


def _rates(name: str, given: Any) -> dict[str, float]:
    try:
        pairs = given.items() if isinstance(given, Mapping) else zip(_LIVE, given, strict=False)
        rates = {rate: float(amount) for rate, amount in pairs}
        if not isinstance(given, Mapping) and len(given) != 2:
            raise ValueError
        if not (rates.keys() <= set(_RATES) and {"input", "output"} <= rates.keys()):
            raise ValueError
        if ("batch_input" in rates) != ("batch_output" in rates):
            raise ValueError
        if not all(0 <= amount < float("inf") for amount in rates.values()):
            raise ValueError
    except (TypeError, ValueError):
        raise ValueError(
            f"prices={{{name!r}: {given!r}}}: expected (input, output) in US$ per million tokens, "
            f"such as (0.40, 1.60), or a dict of {', '.join(_RATES)}; input and output are needed, "
            f"and of the batch's both or none. Nothing was sent."
        ) from None
    return rates


def _price(rates: Sequence[float | None], note: str, guess: str = "") -> Price:
    into, out, cached, written = (None if rate is None else Rate(rate) for rate in rates)
    assert into is not None
    assert out is not None
    return Price(into, out, cached, written, note=note, guess=guess)


def _halves(provider: str, base_url: str | None) -> str | None:
    """The provider's name, where a batch is documented to cost half."""
    if base_url is not None:  # by its address: a server that speaks OpenAI's protocol is not OpenAI
        from genai_prices import data_snapshot

        try:
            provider = data_snapshot.get_snapshot().find_provider(None, None, base_url).id
        except LookupError:
            return None
    return _HALF.get(provider)


def _known(provider: str, model: str, batch: bool, base_url: str | None) -> PriceCalculation | None:
    from genai_prices import Usage as Counts
    from genai_prices import calc_price

    context = {"processing": "batch"} if batch else None
    # By address alone, or by name alone: a server that speaks OpenAI's protocol is not OpenAI.
    where = {"provider_id": provider} if base_url is None else {"provider_api_url": base_url}
    try:
        return calc_price(Counts(), model, price_context=context, **where)  # type: ignore[call-overload, no-any-return]
    except LookupError:
        return None


def _from_data(found: PriceCalculation, batch: bool) -> Price | None:
    rates = found.model_price
    into, out = _rate(rates.input_mtok), _rate(rates.output_mtok)
    if into is None and out is None:
        return None  # listed, but without a price for text
    per_thousand = _rate(rates.requests_kcount)
    guess = ""
    if batch and not _has_batch_rate(found):
        guess = f"no batch price is known for {found.model.id}: it is counted at the live price"
    return Price(
        input=into or Rate(0.0),
        output=out or Rate(0.0),
        cached=_rate(rates.cache_read_mtok),
        cache_write=_rate(rates.cache_write_mtok),
        cache_write_1h=_rate(rates.cache_write_1h_mtok),
        request=0.0 if per_thousand is None else per_thousand.base / 1000,
        guess=guess,
    )


def _rate(rate: Any) -> Rate | None:
    if rate is None:
        return None
    tiers: Mapping[int, float] = {
        tier.start: float(tier.price) for tier in getattr(rate, "tiers", ())
    }
    return Rate(float(getattr(rate, "base", rate)), tuple(sorted(tiers.items())))


def _has_batch_rate(found: PriceCalculation) -> bool:
    variants = found.model.price_variants or ()
    return any(variant.when == {"processing": "batch"} for variant in variants)
