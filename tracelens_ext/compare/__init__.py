"""Comparisons of traces and finished reports."""
