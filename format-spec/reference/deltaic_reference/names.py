"""Names of repositories, branches and tags, and paths in a tree (SPEC §8, "Names")."""

from __future__ import annotations

import re
import unicodedata

from .primitives import require

_PART = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}", re.ASCII)
_VERSION = re.compile(r"v[0-9]+", re.ASCII)
_DRIVE = re.compile(r"[A-Za-z]:", re.ASCII)
_PARTS_CAP = 8


def _check_parts(kind: str, name: str) -> None:
    parts = name.split("/")
    require(len(parts) <= _PARTS_CAP, f"{kind} name {name!r} has more than {_PARTS_CAP} parts")
    for part in parts:
        require(bool(_PART.fullmatch(part)), f"{kind} name {name!r} has the bad part {part!r}")


def check_repository(name: str) -> None:
    _check_parts("repository", name)


def check_branch_or_tag(name: str) -> None:
    _check_parts("branch or tag", name)
    require(not _VERSION.fullmatch(name), f"{name!r} is a version, not a branch or tag")


def check_path(path: str) -> None:
    """A path that is safe to create below any folder."""
    parts = path.split("/")
    require(not {"", ".", ".."} & set(parts), f"path {path!r} has a part that is empty, '.' or '..'")
    control = any(unicodedata.category(character) == "Cc" for character in path)
    require("\\" not in path and not control, f"path {path!r} has a backslash or control character")
    require(parts[0].lower() != ".deltaic", f"path {path!r} lies in .deltaic")
    require(not _DRIVE.match(parts[0]), f"path {path!r} begins with a drive")
