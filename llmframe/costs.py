"""Prices of models, and what a reply cost. Always offline; a price that is not known is None."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
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
        return f"{text} ({self.note})" if self.note else text


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
        batch: For the provider's batch API. A price of the user's holds for both.
        in_process: The engine runs in this process.
        base_url: Where a server was named: the price is that of the provider whose own address
            it is, whatever protocol it speaks, and unknown for any other server.

    Raises:
        ValueError: A price in the options is no pair of numbers.

    Examples:
        >>> import llmframe as lf
        >>> with lf.set_options(prices={"openai/my-model": (0.25, 2.0)}):
        ...     price("openai", "my-model").text()
        'US$0.25 in, US$2.00 out per million tokens (your price)'
        >>> price("openai", "no-such-model") is None
        True
    """
    prices = get_options().prices or {}
    for name in (f"{provider}/{model}", model):
        if name in prices:
            return _own(name, prices[name])
    if in_process:
        return FREE
    found = _known(provider, model, batch, base_url)
    return None if found is None else _from_data(found, batch)


def _own(name: str, pair: Any) -> Price:
    try:
        into, out = (float(amount) for amount in pair)
        if not (0 <= into < float("inf") and 0 <= out < float("inf")):
            raise ValueError
    except (TypeError, ValueError):
        raise ValueError(
            f"prices={{{name!r}: {pair!r}}}: expected (input, output) in US$ per million tokens, "
            f"such as (0.40, 1.60)."
        ) from None
    return Price(Rate(into), Rate(out), note="your price")


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
    note = ""
    if batch and not _has_batch_rate(found):
        note = "list price; no batch price is known"
    return Price(
        input=into or Rate(0.0),
        output=out or Rate(0.0),
        cached=_rate(rates.cache_read_mtok),
        cache_write=_rate(rates.cache_write_mtok),
        cache_write_1h=_rate(rates.cache_write_1h_mtok),
        request=0.0 if per_thousand is None else per_thousand.base / 1000,
        note=note,
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
