"""Pipeline parallelism: stages, their bubbles and waits, and what would shorten them."""
