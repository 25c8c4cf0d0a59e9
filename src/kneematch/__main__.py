"""`python -m kneematch` is `kneematch`."""

from kneematch.cli.main import run

if __name__ == "__main__":
    run()
