"""Parses queries for the metrics and labels that they name. Prometheus itself checks whether
they are valid, and has no API for their parts before version 3."""

import re
from dataclasses import dataclass

TOKEN = re.compile(r'"(?:\\.|[^"\\])*"|\[[^\]]*\]|[a-zA-Z_:][\w:]*|\d[\w.]*|\S')
NAME = re.compile(r"[a-zA-Z_:][\w:]*")
# Followed by labels in parentheses.
LABEL_LISTS = {"by", "without", "on", "ignoring", "group_left", "group_right"}
WORDS = {"and", "or", "unless", "bool", "offset", "inf", "nan"}
AGGREGATIONS = {"sum", "min", "max", "avg", "count", "topk", "bottomk", "group", "quantile"}
# label_replace(…, "made", "$1", "read", "…")
REPLACED = re.compile(r',\s*"(\w+)",\s*"[^"]*",\s*"(\w+)",\s*"[^"]*"\s*\)')
MATCHER = re.compile(r'(\w+)\s*(=~|!~|!=|=)\s*"((?:\\.|[^"\\])*)"')


@dataclass(frozen=True)
class Selector:
    """A metric with its label matchers, as written in a query."""

    metric: str
    matchers: str = ""

    @property
    def labels(self):
        """The labels in the matchers."""
        return {label for label, _, _ in MATCHER.findall(self.matchers)}

    def __str__(self):
        return self.metric + self.matchers


@dataclass(frozen=True)
class Parts:
    """The parts of a query: selectors, labels that it groups or joins by, and labels that it
    creates."""

    selectors: frozenset
    grouped: frozenset
    made: frozenset
    read: frozenset


def parts(expression):
    """Parses a query."""
    tokens = TOKEN.findall(expression)
    selectors, grouped = set(), set()
    place = 0
    while place < len(tokens):
        token = tokens[place]
        following = tokens[place + 1] if place + 1 < len(tokens) else ""
        place += 1
        if token in LABEL_LISTS and following == "(":
            end = tokens.index(")", place)
            grouped |= set(tokens[place + 1 : end]) - {","}
            place = end + 1
        elif NAME.fullmatch(token) and following == "{":
            end = tokens.index("}", place)
            selectors.add(Selector(token, "".join(tokens[place : end + 1])))
            place = end + 1
        elif NAME.fullmatch(token) and following != "(" and token not in WORDS | AGGREGATIONS:
            selectors.add(Selector(token))
    replaced = REPLACED.findall(expression)
    made, read = (frozenset(one[side] for one in replaced) for side in (0, 1))
    return Parts(frozenset(selectors), frozenset(grouped), made, read)
