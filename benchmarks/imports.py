"""What `import llmframe` costs over `import pandas`: medians of pairs of fresh processes.

Run as ``python benchmarks/imports.py``; exits 1 where the median is above the 150 ms allowed.
"""

import statistics
import subprocess
import sys
import time

PAIRS = 11
ALLOWED_MS = 150.0


def seconds(code: str) -> float:
    """Wall time of a fresh interpreter that runs `code`."""
    start = time.perf_counter()
    subprocess.run([sys.executable, "-c", code], check=True)
    return time.perf_counter() - start


def main() -> int:
    """Print the medians; 0 where the cost is within what is allowed."""
    codes = ("import pandas", "import pandas, llmframe")
    for code in codes:  # the first run compiles
        seconds(code)
    # In pairs, so that a busy machine slows both alike.
    pairs = [tuple(seconds(code) for code in codes) for _ in range(PAIRS)]
    base = statistics.median(pair[0] for pair in pairs) * 1000
    extra = statistics.median(pair[1] - pair[0] for pair in pairs) * 1000
    print(f"import pandas   {base:6.0f} ms")
    print(f"import llmframe {extra:+6.0f} ms over it (at most {ALLOWED_MS:.0f})")
    return int(extra > ALLOWED_MS)


if __name__ == "__main__":
    sys.exit(main())
