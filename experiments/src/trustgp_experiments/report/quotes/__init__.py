"""What the pages quote, made from stored results: `python -m trustgp_experiments.report.quotes --write`."""
