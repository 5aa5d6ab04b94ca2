"""YAML text to RunConfig, with answers that say where the mistake is and what to write instead."""

import difflib
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_args

import yaml
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from pipeline.config import RunConfig
from pipeline.errors import ConfigError


def load_config(path: str | Path, overrides: Sequence[str] = ()) -> RunConfig:
    """The validated configuration of a YAML file after `--set a.b=c` overrides.

    Raises ConfigError, one message with every mistake, each with its place.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(
            f"cannot read the configuration {path}: {error.strerror}. It must be a YAML file like "
            f"those in configs/; docs/configuration.md has every key"
        ) from error
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"the configuration {path} must be a YAML file, found bytes that are no UTF-8 text; "
            f"what is in a shard or an image tells: embedmill inspect {path}"
        ) from error
    return parse_config(text, overrides, name=str(path))


def parse_config(text: str, overrides: Sequence[str] = (), *, name: str) -> RunConfig:
    """The validated configuration of YAML text; `name` says in messages where it came from."""
    raw = _parse_yaml(text, name)
    for override in overrides:
        _apply(raw, override)
    return validate_config(raw, name=name)


def validate_config(raw: dict[str, Any], *, name: str) -> RunConfig:
    """The validated configuration of a plain mapping."""
    try:
        return RunConfig.model_validate(raw)
    except ValidationError as error:
        mistakes = [_explain(detail) for detail in error.errors()]
        lines = "\n".join(f"  {mistake}" for mistake in mistakes)
        raise ConfigError(f"{len(mistakes)} mistake(s) in {name}:\n{lines}") from error


class _StrictLoader(yaml.SafeLoader):
    """Safe YAML that refuses a key given twice; plain YAML keeps the last without a word."""


def _unique_mapping(loader: _StrictLoader, node: yaml.MappingNode) -> dict[Any, Any]:
    seen: set[Any] = set()
    for key_node, _ in node.value:
        key = loader.construct_object(key_node, deep=True)
        if not isinstance(key, str):
            raise yaml.MarkedYAMLError(
                problem=f"keys must be plain words, found {key!r}; quote values that hold braces",
                problem_mark=key_node.start_mark,
            )
        if key in seen:
            raise yaml.MarkedYAMLError(
                problem=f"key {key!r} is given twice", problem_mark=key_node.start_mark
            )
        seen.add(key)
    return loader.construct_mapping(node, deep=True)


_StrictLoader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _unique_mapping)


def _parse_yaml(text: str, name: str) -> dict[str, Any]:
    try:
        raw = yaml.load(text, Loader=_StrictLoader)
    except yaml.YAMLError as error:
        raise ConfigError(f"{name} is not valid YAML: {_yaml_problem(error, text)}") from error
    if not isinstance(raw, dict):
        raise ConfigError(
            f"{name} must be a mapping of sections (input, output, model ...), "
            f"found {type(raw).__name__}"
        )
    return raw


def _yaml_problem(error: yaml.YAMLError, text: str) -> str:
    mark = getattr(error, "problem_mark", None)
    problem = getattr(error, "problem", None) or str(error)
    if mark is None:
        return problem
    line = text.splitlines()[mark.line] if mark.line < len(text.splitlines()) else ""
    hint = ""
    if "\t" in line:
        hint = "; YAML takes spaces for indentation, no tabs"
    elif "given twice" not in problem and re.search(r"[:\-]\s*[{*&!%@`\[].*", line):
        hint = "; YAML reads { [ * & ! % @ ` itself: put the whole value in double quotes"
    return f"line {mark.line + 1}, column {mark.column + 1}: {problem}{hint}\n    {line.strip()}"


def _apply(raw: dict[str, Any], override: str) -> None:
    path, equals, text = override.partition("=")
    names = path.strip().split(".")
    if not equals or not all(names):
        raise ConfigError(f"--set takes section.key=value, got {override!r}")
    try:
        value = yaml.safe_load(text)
    except yaml.YAMLError:
        value = text  # a bare glob or brace range, which YAML would read itself
    if isinstance(value, dict) and text.lstrip().startswith("{") and ".." in text:
        value = text
    target = raw
    for name in names[:-1]:
        child = target.setdefault(name, {})
        if not isinstance(child, dict):
            raise ConfigError(f"--set {override}: {name} is a value, not a section")
        target = child
    target[names[-1]] = value


def _explain(detail: ErrorDetails) -> str:
    place = ".".join(str(part) for part in detail["loc"]) or "the configuration"
    found, kind = detail["input"], detail["type"]
    if kind == "extra_forbidden":
        return f"{place}: unknown key{_closest(detail['loc'])}"
    if kind == "missing":
        return f"{place}: must be given; {_meaning(detail['loc'])}"
    if kind == "value_error":
        return f"{place}: {detail['msg'].removeprefix('Value error, ')}"
    if kind == "model_type":
        keys = ", ".join(_section_at(detail["loc"]).model_fields)
        return f"{place}: should be a section with keys of its own ({keys}), got {found!r}"
    hint = ""
    if kind == "string_type" and isinstance(found, int | float):
        hint = f'; YAML reads it as a number: write "{found}" with quotes'
    if kind in ("int_type", "float_type") and isinstance(found, str):
        hint = "; write the number without quotes"
    if kind in ("string_type", "list_type") and isinstance(found, dict):
        hint = "; YAML reads { itself: put the whole value in double quotes"
    if kind == "string_type" and isinstance(found, bool):
        hint = "; YAML reads yes, no, on and off as booleans: put the value in quotes"
    message = detail["msg"].removeprefix("Input ")
    if place.startswith("storage."):  # the value may be a secret
        return f"{place}: {message}, got {type(found).__name__}"
    return f"{place}: {message}, got {found!r}{hint}"


def _closest(loc: tuple[int | str, ...]) -> str:
    fields = sorted(_section_at(loc[:-1]).model_fields)
    close = difflib.get_close_matches(str(loc[-1]), fields, n=1)
    meant = f" (did you mean {close[0]}?)" if close else ""
    return f"{meant}; known here: {', '.join(fields)}"


def _meaning(loc: tuple[int | str, ...]) -> str:
    """What a key that must be given is for."""
    field = _section_at(loc[:-1]).model_fields[str(loc[-1])]
    if field.description:
        return " ".join(field.description.split())
    needed = [k for k, f in _section_at(loc).model_fields.items() if f.is_required()]
    return f"a section with {' and '.join(needed or ['shards'])}"


def _section_at(loc: tuple[int | str, ...]) -> type[BaseModel]:
    """The section at a place in RunConfig; of a value, the one that it is in."""
    model: type[BaseModel] = RunConfig
    for part in loc:
        field = model.model_fields.get(str(part))
        if field is None:
            continue  # an index into a list of sections
        candidates = (field.annotation, *get_args(field.annotation))
        model = next(
            (c for c in candidates if isinstance(c, type) and issubclass(c, BaseModel)), model
        )
    return model
