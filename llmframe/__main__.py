"""``python -m llmframe``: the command line, also where the scripts' folder is not on the path."""

import sys

from llmframe.cli import main

if __name__ == "__main__":
    sys.exit(main())
