"""First-party plugins: optional, found through entry points, each showing one way to extend.

* `jax`: a rule pack made in Python, taking part only when chosen.
* `engine_maps`: engine/model maps as JSON files, each a pack that can be chosen.
"""
