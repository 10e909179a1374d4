"""Profiles of JAX and XLA: xplane files, and their JSON for trace viewers."""
