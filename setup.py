"""Packages and C extensions of the distribution; everything else is in `pyproject.toml`."""

from setuptools import Extension, find_packages, setup


def optional_extension(package: str) -> Extension:
    """Return the C extension of a reader: built where there is a compiler; else, Python reads."""
    return Extension(
        f"tracelens_ext.readers.{package}._native",
        [f"tracelens_ext/readers/{package}/_native.c"],
        py_limited_api=True,
        optional=True,
    )


setup(
    packages=[
        *find_packages(include=["tracelens_ext", "tracelens_ext.*"]),
        "tracelens_ext_categorizers",
        "tracelens_ext_plugins",
    ],
    ext_modules=[optional_extension("kineto"), optional_extension("nsys")],
    options={"bdist_wheel": {"py_limited_api": "cp311"}},
)
