"""The page of the public API, generated from signatures and docstrings.

`python tools/api_reference.py --write` (make docs) writes docs/api.md, which reads the same on GitHub and on the site.
A test fails when the page is not current.
"""

import ast
import inspect
import re
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import qsft

REPO = Path(__file__).resolve().parent.parent
PAGE = REPO / "docs" / "api.md"
WIDTH = 88  # columns of a signature before it is broken into lines

INTRODUCTION = (
    "# API\n\n"
    "This page lists the public names of qsft. It is generated from the docstrings by `make docs`. Import a name with "
    "`from qsft import …`. Names are imported on first use, so `import qsft` is fast. `qsft.__version__` is the "
    "version.\n"
)
SECTIONS = {
    "Training": ["TargetSFTTrainer", "TargetSFTConfig", "TeacherCollator"],
    "Targets": [
        "Target",
        "TARGETS",
        "make_target",
        "TokenView",
        "TopK",
        "SideInputs",
        "induced_target",
        "LossTarget",
        "fixed_point",
    ],
    "Losses": ["target_loss", "fused_target_loss"],
    "The teacher": ["TeacherCache", "build_cache"],
    "Evaluation": ["evaluate", "grade"],
}
METHODS_OF = ("Target", "TokenView", "TopK", "TeacherCache")
# Constants have no docstring that Python keeps.
CONSTANTS = {
    "TARGETS": "The named targets: `{name: NamedTarget}`, in the order of `qsft targets`. A `NamedTarget` has `name`, "
    "`title`, `summary`, `loss`, `reference` and `build(**hparams)`."
}
SECTION_OF_DOCSTRING = re.compile(r"^(Args|Attributes|Raises|Returns):$")
ENTRY_OF_SECTION = re.compile(r"^ {4}(\w+): (.*)$")


def page() -> str:
    """The text of docs/api.md."""
    parts = [INTRODUCTION]
    for section, names in SECTIONS.items():
        parts.append(f"## {section}\n")
        parts += [entry(name) for name in names]
    return "\n".join(parts)


def entry(name: str) -> str:
    """The heading, signature and documentation of one public name."""
    if name in CONSTANTS:
        return f"### {name}\n\n{CONSTANTS[name]}\n"
    value: Any = getattr(qsft, name)
    lines = [
        f"### {name}",
        "",
        "```python",
        signature(name, value),
        "```",
        "",
        *as_markdown(inspect.getdoc(value) or ""),
    ]
    if name == "TargetSFTConfig":
        lines += ["", *config_fields(value)]
    if name in METHODS_OF:
        lines += ["", *methods(value)]
    return "\n".join(lines) + "\n"


def signature(name: str, value: Any) -> str:
    """The call as the source writes it: annotations without their modules."""
    if name == "TargetSFTConfig":
        return "TargetSFTConfig(output_dir=None, ...)"
    node = definition(value)
    if isinstance(node, ast.FunctionDef):
        returned = f" -> {ast.unparse(node.returns)}" if node.returns is not None else ""
        return call(name, arguments(node)) + returned
    for member in node.body:
        if isinstance(member, ast.FunctionDef) and member.name == "__init__":
            return call(name, arguments(member)[1:])
    return call(name, [field for member in node.body for field in dataclass_field(member)])


def definition(value: Any) -> Any:
    """The syntax tree of a class or function."""
    return ast.parse(textwrap.dedent(inspect.getsource(value))).body[0]


def arguments(node: ast.FunctionDef) -> list[str]:
    """The parameters of a function as texts, with `/` and `*` where they stand."""
    args = node.args
    positional = [*args.posonlyargs, *args.args]
    defaults: list[ast.expr | None] = [None] * (len(positional) - len(args.defaults)) + list(args.defaults)
    texts = [parameter(arg, default) for arg, default in zip(positional, defaults, strict=True)]
    if args.posonlyargs:
        texts.insert(len(args.posonlyargs), "/")
    if args.vararg:
        texts.append(f"*{parameter(args.vararg, None)}")
    elif args.kwonlyargs:
        texts.append("*")
    texts += [parameter(arg, default) for arg, default in zip(args.kwonlyargs, args.kw_defaults, strict=True)]
    if args.kwarg:
        texts.append(f"**{parameter(args.kwarg, None)}")
    return texts


def parameter(arg: ast.arg, default: ast.expr | None) -> str:
    text = arg.arg
    if arg.annotation is not None:
        text += f": {ast.unparse(arg.annotation)}"
    if default is not None:
        text += f" = {ast.unparse(default)}"
    return text


def dataclass_field(member: ast.stmt) -> Iterator[str]:
    """The parameter that a field of a dataclass becomes; nothing for other members."""
    if not isinstance(member, ast.AnnAssign) or not isinstance(member.target, ast.Name):
        return
    if ast.unparse(member.annotation) == "KW_ONLY":
        yield "*"
        return
    if member.value is not None and "init=False" in ast.unparse(member.value):
        return
    text = f"{member.target.id}: {ast.unparse(member.annotation)}"
    if member.value is not None:
        text += f" = {default_of_field(member.value)}"
    yield text


def default_of_field(value: ast.expr) -> str:
    """A default, or what `field(default_factory=…)` makes."""
    if isinstance(value, ast.Call) and ast.unparse(value.func) == "field":
        for keyword in value.keywords:
            if keyword.arg == "default_factory":
                return f"{ast.unparse(keyword.value)}()"
            if keyword.arg == "default":
                return ast.unparse(keyword.value)
    return ast.unparse(value)


def call(name: str, texts: list[str]) -> str:
    """`name(a, b)`, one parameter per line where one line would be too long."""
    line = f"{name}({', '.join(texts)})"
    if len(line) <= WIDTH:
        return line
    return "\n".join([f"{name}(", *(f"    {text}," for text in texts), ")"])


def as_markdown(docstring: str) -> list[str]:
    """A docstring with its sections as lists and its examples as code."""
    lines: list[str] = []
    in_section = False
    in_example = False
    for line in docstring.splitlines():
        heading = SECTION_OF_DOCSTRING.match(line)
        item = ENTRY_OF_SECTION.match(line) if in_section else None
        if line.startswith(">>> ") and not in_example:
            in_example = True
            lines.append("```pycon")
        elif in_example and not line.strip():
            in_example = False
            lines.append("```")
        if heading:
            in_section = True
            lines += [f"**{heading[1]}**", ""]
        elif item:
            lines.append(f"- `{item[1]}`: {item[2]}")
        elif in_section and line.startswith("     "):
            lines.append(f"  {line.strip()}")
        else:
            in_section = in_section and not line.strip()
            lines.append(line)
    if in_example:
        lines.append("```")
    return lines


def config_fields(config: Any) -> Iterator[str]:
    """The fields that TargetSFTConfig adds to SFTConfig, with default and help."""
    inherited = {field.name for field in fields(config.__mro__[1])}
    for field in fields(config):
        if field.name not in inherited:
            yield f"- `{field.name}` (default `{field.default!r}`): {field.metadata['help']}"


def methods(cls: Any) -> Iterator[str]:
    """The public methods and properties of a class, each with the first paragraph of its docstring."""
    yield "**Methods and properties**"
    yield ""
    for member in definition(cls).body:
        if not isinstance(member, ast.FunctionDef) or member.name.startswith("_"):
            continue
        text = (ast.get_docstring(member) or "").split("\n\n")[0].replace("\n", " ")
        if not text:
            continue
        decorators = [ast.unparse(decorator) for decorator in member.decorator_list]
        if "property" in decorators or "cached_property" in decorators:
            yield f"- `{member.name}`: {text}"
            continue
        texts = arguments(member)
        texts = texts if "staticmethod" in decorators else texts[1:]
        yield f"- `{member.name}({', '.join(texts)})`: {text}"


if __name__ == "__main__":
    if "--write" in sys.argv:
        PAGE.write_text(page(), encoding="utf-8")
    elif PAGE.read_text(encoding="utf-8") != page():
        sys.exit(f"{PAGE} is not current: run `make docs`.")
