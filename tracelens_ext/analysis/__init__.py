"""One module or package for each question that can be asked of a trace."""
