"""Keeps scripts working that were written for other tools or for earlier versions."""
