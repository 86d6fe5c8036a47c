"""What the pages of the reference show of the source: formulas as MathML, and no private fields."""

from __future__ import annotations

import re
from collections.abc import Iterator

import griffe
from latex2mathml.converter import convert

BLOCK = re.compile(r"^( *)\.\. math:: *((?:.*\n?)(?:\1 +\S.*\n?)*)", flags=re.MULTILINE)
INLINE = re.compile(r":math:`([^`]+)`")


def block(match: re.Match) -> str:
    """A formula on lines of its own."""
    made = convert(" ".join(match[2].split()), display="block")
    return f'\n{match[1]}<div class="formula">{made}</div>\n'


def classes(found: griffe.Module | griffe.Class) -> Iterator[griffe.Class]:
    """All classes of a package."""
    for member in found.members.values():
        if not member.is_alias and (member.is_module or member.is_class):
            if member.is_class:
                yield member
            yield from classes(member)


class Reference(griffe.Extension):
    """Formulas in TeX become MathML, which browsers show without a script; private fields are left out."""

    def on_object(self, *, obj: griffe.Object, **_) -> None:
        if obj.docstring and "math:" in obj.docstring.value:
            text = BLOCK.sub(block, obj.docstring.value)
            obj.docstring.value = INLINE.sub(lambda match: convert(match[1]), text)

    def on_package(self, *, pkg: griffe.Module, **_) -> None:
        griffe.DataclassesExtension().on_package(pkg=pkg)
        for found in classes(pkg):
            init = found.members.get("__init__")
            if init is not None and "dataclass" in found.labels:
                fields = [one for one in init.parameters if not one.name.startswith("_")]
                for one in fields:
                    one.default = None if "(" in str(one.default or "") else one.default
                init.parameters = griffe.Parameters(*fields)
