"""Names of edge types: "source:relation:destination"."""

from __future__ import annotations

__all__ = ["CANONICAL_ETYPE_DELIMITER", "etype_str_to_tuple", "etype_tuple_to_str"]

CANONICAL_ETYPE_DELIMITER = ":"


def etype_str_to_tuple(c_etype: str | tuple[str, str, str]) -> tuple[str, str, str]:
    """Splits an edge type's name; a tuple is returned as it is.

    Args:
        c_etype: "source:relation:destination", or the tuple of these three.

    Raises:
        TypeError: neither a string nor a tuple.
        ValueError: not three parts.

    >>> etype_str_to_tuple("user:buys:item")
    ('user', 'buys', 'item')
    """
    if isinstance(c_etype, str):
        parts = tuple(c_etype.split(CANONICAL_ETYPE_DELIMITER))
    elif isinstance(c_etype, tuple):
        parts = c_etype
    else:
        raise TypeError(f"edge type is a {type(c_etype).__name__}; expected a string or a tuple")
    if len(parts) != 3 or not all(isinstance(part, str) and part for part in parts):
        raise ValueError(
            f"edge type is {c_etype!r}; expected three names, 'source:relation:destination'"
        )
    return parts[0], parts[1], parts[2]


def etype_tuple_to_str(c_etype: tuple[str, str, str]) -> str:
    """Joins the three names of an edge type.

    Raises:
        TypeError: not a tuple.
        ValueError: not three names, or one contains the delimiter.

    >>> etype_tuple_to_str(("user", "buys", "item"))
    'user:buys:item'
    """
    if not isinstance(c_etype, tuple):
        raise TypeError(f"edge type is a {type(c_etype).__name__}; expected a tuple of three names")
    parts = etype_str_to_tuple(c_etype)
    if any(CANONICAL_ETYPE_DELIMITER in part for part in parts):
        raise ValueError(f"edge type {c_etype!r} has the delimiter ':' inside a name")
    return CANONICAL_ETYPE_DELIMITER.join(parts)
