"""Choices and defaults of the commands, which their help shows. Standard library only."""

BAND = 0.03
"""Largest relative difference that does not matter in practice; to be chosen before the measurement."""
BY = ("platform", "device", "framework", "machine", "nodes", "label")
"""Properties in which the two sides of a pair may differ; evaluate/verdict/pairs.py reads them."""
BUDGET_TOKENS = 1e12
PUBLISHED = "published"
"""Name of the published figures as a baseline of an acceptance test (evaluate/acceptance)."""
LEAST_PERCENT = 95.0
"""A side below this share of the best published figure is marked untuned; the default of an acceptance test."""
JOINABLE = ("host", "label")
"""Properties that `history --join` takes out of the key of a series."""
FORMATS = ("md", "html", "json", "png")
"""Formats of a comparison that are written unless others are asked for."""
TABLES = ("csv", "parquet")
"""Formats of a table of results."""
