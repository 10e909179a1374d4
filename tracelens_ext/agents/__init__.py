"""What an agent may ask about traces: the tools of `tracelens-ext mcp`."""
