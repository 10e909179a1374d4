"""The sheets of the report: what each shows, when it is there, its columns, and what makes it."""
