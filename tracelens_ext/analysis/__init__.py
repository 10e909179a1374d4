"""Analyses: functions of a trace, its tree and categories that return a DataFrame."""
