"""Draw boxes on one knee of one X-ray; get both knee joint areas in every other one."""

__version__ = "0.1.0"
