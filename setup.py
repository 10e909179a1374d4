"""The packages of the distribution; everything else is in `pyproject.toml`."""

from setuptools import find_packages, setup

setup(
    packages=[
        *find_packages(include=["tracelens_ext", "tracelens_ext.*"]),
        "tracelens_ext_categorizers",
        "tracelens_ext_plugins",
    ]
)
