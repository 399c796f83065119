"""Names of edge types, "source:relation:destination", and of seed types."""

from __future__ import annotations

__all__ = [
    "CANONICAL_ETYPE_DELIMITER",
    "etype_str_to_tuple",
    "etype_tuple_to_str",
    "seed_type_str_to_ntypes",
]

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


def seed_type_str_to_ntypes(seed_type: str, seed_size: int) -> list[str]:
    """Node type of each end of seeds.

    Args:
        seed_type: an edge type, "source:relation:destination"; or one node type for each end,
            "a:b:c", as hyperlinks have.
        seed_size: ends of each seed.

    Returns:
        seed_size names. As many parts as ends are the ends' types, else every second part is.

    Raises:
        TypeError: seed_type is not a string.
        ValueError: the parts do not fit the number of ends.

    >>> seed_type_str_to_ntypes("user:buys:item", 2), seed_type_str_to_ntypes("a:b:c", 3)
    (['user', 'item'], ['a', 'b', 'c'])
    """
    if not isinstance(seed_type, str):
        raise TypeError(
            f"seed type is {seed_type!r}; expected a string such as 'source:relation:destination'"
        )
    parts = seed_type.split(CANONICAL_ETYPE_DELIMITER)
    names = parts if len(parts) == seed_size else parts[::2]
    if len(names) != seed_size or not all(parts):
        raise ValueError(
            f"seed type {seed_type!r} does not name the node types of {seed_size} ends; expected "
            "'source:relation:destination', or one node type for each end"
        )
    return names
