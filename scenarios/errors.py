"""What is wrong with a scenario, where it stands, and what to write instead."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, get_args

from pydantic import ValidationError
from pydantic_core import ErrorDetails, InitErrorDetails, PydanticCustomError
from pydantic_core.core_schema import ErrorType

_BUILTIN = get_args(ErrorType)
_QUOTED = re.compile(r"'([^']*)'")

KeyPath = tuple[str | int, ...]
"""Keys and list indices from the root of a document to a value."""


class Problem(NamedTuple):
    """One mistake. `where` is `file:line` or the `--set` argument, `field` the dotted path; either may be empty."""

    where: str
    field: str
    message: str

    def __str__(self) -> str:
        return ": ".join(part for part in self if part)


class ScenarioError(ValueError):
    """A scenario that cannot be loaded. `str()` has one line per problem; `problems` has them apart."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        super().__init__("\n".join(map(str, problems)))
        self.problems = tuple(problems)


def did_you_mean(word: object, names: Iterable[str]) -> str:
    """`; did you mean 'loss'?`, or nothing where no name comes near."""
    nearest = difflib.get_close_matches(str(word).lower(), list(names), n=1)
    return f"; did you mean {nearest[0]!r}?" if nearest else ""


def unknown(kind: str, word: object, names: Iterable[str]) -> str:
    """`unknown key 'losss'; did you mean 'loss'?`, with all valid names where none comes near."""
    names = list(names)
    hint = did_you_mean(word, names) or f"; valid: {', '.join(names) or 'none'}"
    return f"unknown {kind} {word!r}{hint}"


def located(problems: Sequence[tuple[KeyPath, str]]) -> PydanticCustomError:
    """An error for a validator of a model to raise: messages at paths inside that model."""
    text = "; ".join(f"{dotted(path)}: {message}" if path else message for path, message in problems)
    return PydanticCustomError("located", "{text}", {"text": text, "problems": tuple(problems)})


def raised_again(line: ErrorDetails) -> InitErrorDetails:
    """One of the errors of a ValidationError, to be put into another."""
    kind, context = line["type"], line.get("ctx", {})
    builtin = kind in _BUILTIN
    return InitErrorDetails(
        type=kind if builtin else PydanticCustomError(kind, line["msg"], context),
        loc=line["loc"], input=line["input"], ctx=context if builtin else {},
    )


def dotted(path: KeyPath) -> str:
    """`events.0.loss`."""
    return ".".join(map(str, path))


def explain(error: ValidationError, data: Any, where: Callable[[KeyPath], str]) -> list[Problem]:
    """Pydantic's errors about `data` as problems in the words and paths of the document.

    `where` gives the place (`file:line`) of a path that stands in the document.
    """
    problems = []
    for line in error.errors():
        for path, message in _messages(line):
            place = _in_document(path, data)
            absent = line["type"] == "missing"
            problems.append(Problem(where(place), dotted(place + path[-1:] if absent else place), message))
    return problems


def _messages(line: Any) -> list[tuple[KeyPath, str]]:
    path, kind, value, context = line["loc"], line["type"], line["input"], line.get("ctx", {})
    match kind:
        case "located":
            return [(path + inner, message) for inner, message in context["problems"]]
        case "missing":
            message = f"required key {path[-1]!r} is missing"
        case "value_error":
            message = str(context["error"])
        case "literal_error":
            message = _not_one_of(value, context["expected"])
        case "union_tag_invalid":
            path += (context["discriminator"].strip("'"),)
            message = _not_one_of(context["tag"], context["expected_tags"])
        case "union_tag_not_found":
            message = f"required key {context['discriminator']} is missing"
        case "model_type" | "dict_type" | "model_attributes_type":
            message = f"expected a mapping, not {value!r}"
        case "too_short":
            message = "should not be empty"
        case "string_pattern_mismatch":  # only names have a pattern
            message = f"{value!r} should start with a letter or digit and use only a-z, 0-9, '.', '_' and '-'"
        case "default_factory_not_called":  # follows from another error, which is in the list too
            return []
        case _:
            message = f"{line['msg'].removeprefix('Input ')}, not {value!r}"
    return [(path, message)]


def _not_one_of(word: object, expected: str) -> str:
    return f"{word!r} is not {expected}{did_you_mean(word, _QUOTED.findall(expected))}"


def _in_document(path: KeyPath, data: Any) -> KeyPath:
    """The parts of a pydantic location that stand in the document: without tags of unions and absent keys."""
    place: KeyPath = ()
    entered = True  # the last part led into `data`
    for part in path:
        if entered and isinstance(data, dict) and data.get("action") == part:  # a tag that may be a key, too
            entered = False
            continue
        inside = part in data if isinstance(data, dict) else isinstance(data, list) and part in range(len(data))
        if inside:
            data = data[part]
            place += (part,)
        entered = inside
    return place
