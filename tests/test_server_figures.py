"""A vLLM server's own figures, from a page as 0.32 writes it."""

from __future__ import annotations

import io
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pandas as pd
import pytest
from tqdm import tqdm

import llmframe as lf
from llmframe.engines.base import Figures
from llmframe.engines.server_figures import ServerMeter, counters, figures_of
from llmframe.progress import Progress, _Bar, display

PAGE = """\
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="tiny"} 12.0
vllm:num_requests_waiting{engine="0",model_name="tiny"} 3.0
vllm:kv_cache_usage_perc{engine="0",model_name="tiny"} 0.25
vllm:prefix_cache_queries_total{engine="0",model_name="tiny"} 2000.0
vllm:prefix_cache_hits_total{engine="0",model_name="tiny"} 500.0
vllm:num_preemptions_total{engine="0",model_name="tiny"} 2.0
vllm:prompt_tokens_total{engine="0",model_name="tiny"} 1e+03
vllm:generation_tokens_total{engine="0",model_name="tiny"} 400.0
python_gc_objects_collected_total{generation="0"} 9.0
"""


def test_figures_between_two_looks():
    now = counters(PAGE)
    before = {**now, "prompt_tokens_total": 800.0, "generation_tokens_total": 300.0}
    assert figures_of(now, 10.0, before, 12.0) == Figures(
        tokens_per_second=150.0,
        running=12,
        waiting=3,
        kv_cache=0.25,
        prefix_hits=0.25,
        preemptions=2,
    )


@pytest.fixture
def page():
    """A server of one page; gives its root, the page to change, and the paths asked."""
    shown, asked = {"text": PAGE}, []

    class Page(BaseHTTPRequestHandler):
        def do_GET(self):
            asked.append(self.path)
            self.send_response(200 if shown["text"] else 404)
            self.end_headers()
            self.wfile.write(shown["text"].encode())

        def log_message(self, *args):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Page) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}", shown, asked
        server.shutdown()


def seen(meter):
    until = time.monotonic() + 60
    while (figures := meter.figures()) is None and time.monotonic() < until:
        time.sleep(0.01)
    return figures


def test_an_engine_reads_its_servers_page(page):
    root, _, asked = page
    engine = lf.OpenAI("tiny", base_url=f"{root}/v1", api_key="none")
    assert seen(engine).running == 12
    assert set(asked) == {"/metrics"}


def test_a_server_without_the_page_is_asked_once(page):
    root, shown, asked = page
    shown["text"] = ""
    meter = ServerMeter(f"{root}/v1")
    for _ in range(50):
        assert meter.figures() is None
        time.sleep(0.01)
    assert asked == ["/metrics"]


def test_a_public_service_is_never_asked():
    meter = ServerMeter("https://api.example.com/v1")
    assert meter.figures() is None
    assert meter._thread is None


def test_a_log_line_shows_them(capsys):
    figures = Figures(tokens_per_second=1234.4, running=64, waiting=3, kv_cache=0.42, p95=1.25)
    shown = display("j_1", True)
    shown.update(Progress(100, seconds=0.1, figures=Figures(loading=True)))
    shown.close(Progress(100, seconds=0.2, figures=Figures(loading=True)))
    assert capsys.readouterr().err == "j_1: 0 of 100 rows, 0 tokens, loading the model\n"
    shown = display("j_1", True)
    shown.update(Progress(100, seconds=170.0))  # while the model is loaded
    shown.update(Progress(100, ok=2, seconds=190.0))
    shown.close(Progress(100, ok=40, seconds=209.0, figures=figures))
    line = capsys.readouterr().err
    assert "40 of 100 rows" in line
    assert "1,234 tokens/s, 64 running, 3 waiting, KV cache 42%, p95 1.2 s" in line
    assert "about 0:00:30 left" in line, "38 rows in 19 seconds"
    assert "None" not in line


def test_a_bar_tells_the_time_left_from_the_first_answers_on():
    drawn = io.StringIO()
    bar = _Bar("j_1", lambda **options: tqdm(**options, file=drawn), 0.0)
    bar.update(Progress(12, seconds=1.0))
    bar._bar.start_t -= 189  # a model was loaded
    bar.update(Progress(12, ok=2, seconds=190.0))
    bar._bar.start_t -= 4
    bar.update(Progress(12, ok=6, seconds=194.0))
    assert "00:04<00:06" in drawn.getvalue().rpartition("\r")[2]


def test_nobody_asks_an_engine_that_nobody_watches(home):
    asked = []
    engine = lf.testing.FakeEngine("ok")
    engine.figures = lambda: asked.append(1)  # type: ignore[attr-defined]
    df = pd.DataFrame({"t": ["a", "b"]})
    job = df.llm.submit.map("{t}", model=engine, progress=False)
    job.wait().status()
    assert not asked
    df.llm.submit.map("More {t}", model=engine, progress=True).wait()
    assert asked
