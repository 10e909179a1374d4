"""Comparing traces and finished reports."""
