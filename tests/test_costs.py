"""Prices: known, unknown, the user's own, and agreement with the data's own arithmetic."""

from __future__ import annotations

import socket

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmframe.costs import Price, Rate, price
from llmframe.options import set_options
from llmframe.results import Usage
from llmframe.testing import FakeEngine, drive, requests

genai_prices = pytest.importorskip("genai_prices")

MODELS = [
    ("openai", "gpt-4.1-mini"),
    ("openai", "gpt-4.1-mini-2025-04-14"),
    ("openai", "text-embedding-3-small"),
    ("anthropic", "claude-sonnet-4-5"),  # dearer above 200,000 tokens
    ("google", "gemini-2.5-pro"),
]


@pytest.mark.parametrize("batch", [False, True])
@pytest.mark.parametrize(("provider", "model"), MODELS)
@pytest.mark.parametrize("tokens", [1_000, 200_000, 200_001, 900_000])
def test_a_cost_agrees_with_the_data_and_its_own_arithmetic(provider, model, tokens, batch):
    usage = Usage(tokens, 500, tokens // 4, tokens // 8, cache_write_1h_tokens=tokens // 16)
    ours = price(provider, model, batch=batch)
    counts = {"input_tokens": tokens, "output_tokens": 500}
    if ours.cached is not None:
        counts["cache_read_tokens"] = usage.cached_tokens
    if ours.cache_write is not None:
        counts["cache_write_tokens"] = usage.cache_write_tokens
    if ours.cache_write_1h is not None:
        counts["cache_write_1h_tokens"] = usage.cache_write_1h_tokens
    theirs = genai_prices.calc_price(
        genai_prices.Usage(**counts),
        model,
        provider_id=provider,
        price_context={"processing": "batch"} if batch else None,
    )
    assert ours.cost(usage) == pytest.approx(float(theirs.total_price), rel=1e-9)


def test_a_batch_costs_less_where_the_data_say_so_and_says_so_where_not():
    live, batch = (price("openai", "gpt-4.1-mini", batch=batch) for batch in (False, True))
    assert batch.input.base == live.input.base / 2
    embedding = price("openai", "text-embedding-3-small", batch=True)
    assert "no batch price is known" in embedding.text()


def test_u033_an_unpriced_model_is_unknown_and_never_free():
    assert price("openai", "a-model-of-tomorrow") is None
    assert price("no-such-provider", "gpt-4.1-mini") is None
    assert price("openai", "a-model-of-tomorrow", batch=True) is None


@pytest.mark.parametrize("base_url", ["http://127.0.0.1:8000/v1", "https://llm.example.org/v1"])
def test_a_server_of_ones_own_has_no_known_price(base_url):
    assert price("openai", "gpt-4.1-mini", base_url=base_url) is None
    with set_options(prices={"openai/gpt-4.1-mini": (1, 2)}):
        assert price("openai", "gpt-4.1-mini", base_url=base_url).input == Rate(1.0)


def test_a_provider_is_known_by_its_own_address():
    own = price("openai", "gpt-4.1-mini", base_url="https://api.openai.com/v1")
    assert own == price("openai", "gpt-4.1-mini")
    with_model_of_another = price(
        "openai", "gpt-4.1-mini", base_url="https://api.groq.com/openai/v1"
    )
    assert with_model_of_another is None


def test_an_engine_in_this_process_is_free():
    free = price("local", "any.gguf", in_process=True)
    assert free.cost(Usage(10**9, 10**9)) == 0
    assert free.text() == "free (runs in this process)"


def test_prices_of_the_users_own_come_first():
    with set_options(prices={"openai/gpt-4.1-mini": (10, 20), "gpt-5": (0, 0), "local/x": (1, 1)}):
        assert price("openai", "gpt-4.1-mini").cost(Usage(500_000, 100_000)) == 7.0
        assert price("azure", "gpt-5").cost(Usage(10, 10)) == 0
        assert price("local", "x", in_process=True).cost(Usage(1_000_000)) == 1.0
    assert price("openai", "gpt-4.1-mini").input != Rate(10.0)


def test_a_pair_is_halved_for_batches_where_that_is_documented_and_says_so():
    usage = Usage(500_000, 100_000)
    with set_options(prices={"m": (10, 20)}):
        for where in (
            {"provider": "openai"},
            {"provider": "openai", "base_url": "https://api.openai.com/v1"},
            {"provider": "anthropic", "base_url": "https://api.anthropic.com"},
        ):
            assert price(model="m", **where).guess == ""
            batch = price(model="m", batch=True, **where)
            assert batch.cost(usage) == 3.5
            assert "assumed to be half of yours" in batch.text()
        for where in (
            {"provider": "openai", "base_url": "http://127.0.0.1:8000/v1"},
            {"provider": "fake"},
        ):
            other = price(model="m", batch=True, **where)
            assert other.cost(usage) == 7.0
            assert "no batch price is known" in other.guess


def test_every_rate_can_be_stated():
    rates = {"input": 2, "output": 8, "cached_input": 0.5, "batch_input": 0.5, "batch_output": 3}
    mega = 1_000_000
    with set_options(prices={"m": rates}):
        live, batch = price("openai", "m"), price("openai", "m", batch=True)
        assert live.cost(Usage(2 * mega, mega, cached_tokens=mega)) == 2 + 8 + 0.5
        # What is cached is cheaper in a batch by as much as the other input is.
        assert batch.cost(Usage(2 * mega, mega, cached_tokens=mega)) == 0.5 + 3 + 0.125
        assert batch.guess == ""
    with set_options(prices={"m": {**rates, "batch_cached_input": 0.25, "batch_cache_write": 1}}):
        batch = price("openai", "m", batch=True)
        assert batch.cost(Usage(2 * mega, 0, mega, mega)) == 1.25


@pytest.mark.parametrize(
    "pair",
    [
        *[1.0, (1,), (1, 2, 3), ("a", "b"), (-1, 0), (float("nan"), 0), None],
        *[{}, {"input": 1}, {"input": 1, "output": 2, "ouput": 2}],
        {"input": 1, "output": 2, "batch_input": 0.5},
    ],
)
def test_a_price_that_is_no_pair_is_refused(pair):
    with (
        set_options(prices={"openai/m": pair}),
        pytest.raises(ValueError, match="expected \\(input"),
    ):
        price("openai", "m")


def test_the_text_shows_rates_tiers_and_cache():
    tiered = Price(Rate(3, ((200_000, 6),)), Rate(15), cached=Rate(0.375), request=0.005)
    assert tiered.text() == (
        "US$3.00 in, US$0.375 cached, US$15.00 out per million tokens "
        "and US$5.00 per thousand requests, more above 200,000 input tokens a request"
    )


@pytest.mark.parametrize("batch", [False, True])
def test_what_is_written_to_the_cache_for_an_hour_costs_twice_the_input(batch):
    rates = price("anthropic", "claude-haiku-4-5", batch=batch)
    million, minutes, hour = (
        rates.cost(Usage(1_000_000, cache_write_tokens=written, cache_write_1h_tokens=hourly))
        for written, hourly in ((0, 0), (1_000_000, 0), (1_000_000, 1_000_000))
    )
    assert (minutes, hour) == (pytest.approx(1.25 * million), pytest.approx(2 * million))


def test_without_a_price_of_its_own_an_hour_costs_what_minutes_do():
    rates = Price(Rate(1.0), Rate(5.0), cache_write=Rate(1.25))
    assert rates.cost(Usage(100, 0, 0, 100, 0, 60)) == rates.cost(Usage(100, 0, 0, 100))


@given(st.builds(Usage, *[st.integers(0, 10**7)] * 6))
def test_no_usage_costs_less_than_nothing(usage):
    odd = Price(Rate(3), Rate(15), Rate(0.3), cache_write=Rate(3.75), cache_write_1h=Rate(6))
    assert 0 <= odd.cost(usage) <= (usage.input_tokens * 6 + usage.output_tokens * 15) / 1e6


def test_u024_tokens_of_failed_rows_are_in_the_books():
    engine = FakeEngine("x" * 40, faults=[None, "truncate", "garbage", "500"])
    usages = [result.usage for result in drive(engine, requests("abcd"))]
    assert [usage is None for usage in usages] == [False, False, False, True]
    assert sum(usages[:3], Usage()).output_tokens == 11 + 6 + 11


def test_no_connection_is_ever_made(monkeypatch):
    def refuse(*args, **kwargs):
        raise AssertionError("a connection")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    assert price("openai", "gpt-4.1") is not None
