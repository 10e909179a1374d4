"""How scripts that were written for other tools, or for earlier versions, go on working."""
