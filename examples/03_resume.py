"""The process is killed while its batch is at the provider; the same call pays for nothing twice.

Runs without a key or a network: a fake provider keeps its batches in a folder.
"""

import subprocess
import sys
import tempfile

import pandas as pd

import llmframe as lf

CALL = """
import os, sys, pandas as pd, llmframe as lf
df = pd.DataFrame({"city": ["Oslo", "Lima", "Rome", "Bern"]})
folder = sys.argv[1]
provider = lf.testing.FakeBatchEngine("a city", directory=folder, polls=10**9)
lf.set_options(home=folder + "/store", poll_interval=0.1)
job = df.llm.submit.map("What is {city}?", model=provider)
while not provider.created: pass
os.kill(os.getpid(), 9)  # the power goes
"""

folder = tempfile.mkdtemp()
killed = subprocess.run([sys.executable, "-c", CALL, folder], check=False)
print("the first process ended with", killed.returncode)

provider = lf.testing.FakeBatchEngine("a city", directory=folder)
df = pd.DataFrame({"city": ["Oslo", "Lima", "Rome", "Bern"]})
with lf.set_options(home=folder + "/store", poll_interval=0.1):
    print(lf.jobs())
    out = lf.map(df, "What is {city}?", model=provider)  # the same call: it finds the batch
print(out)
print(
    len(provider.created), "batch at the provider,", len(provider.submits), "sent by this process"
)
