"""`python -m kneematch` is `kneematch`."""

import sys

from kneematch.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
