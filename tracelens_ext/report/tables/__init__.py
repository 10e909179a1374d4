"""The methods of `TreePerfAnalyzer` by subject, as its base classes."""
