"""Independent reference of the Deltaic formats, version 1, written from `SPEC.md` alone."""

from .primitives import FormatError

__all__ = ["FormatError"]
