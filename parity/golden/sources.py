"""Which source files a piece of maths is made of: modules found by reading them, never by importing one."""

from __future__ import annotations

import ast
import hashlib
import sys
import sysconfig
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib.util import find_spec
from pathlib import Path

INSTRUMENT = "parity"
"""Both sides hand their tensors to it; it computes none of them, and is not followed."""

ROOMS = ("references", "device", "fixtures", "reports")
"""Its subpackages that are packages of their own: what judges and what is judged."""

INSTALLED = tuple(Path(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib", "purelib", "platlib"))

Locate = Callable[[str], Path | None]
"""`located`, which may remember what it found."""


def package(module: str) -> str:
    """The package that a module belongs to: its first name, `parity.references` and the like as one."""
    first, _, rest = module.partition(".")
    room = rest.partition(".")[0]
    return f"{first}.{room}" if first == INSTRUMENT and room in ROOMS else first


def reached(starts: Iterable[str], follow: Collection[str] = ()) -> set[str]:
    """These modules and all that they import, directly or through others, by name.

    Imports inside functions, by `import_module("name")`, and names of loaded modules in strings count as well.
    What an installed package imports is left alone, unless it is the package of a start.

    Args:
        follow: installed packages to read all the same.
    """
    waiting = {whole for name in starts for whole in _packages(name)}
    roots = {package(name) for name in waiting} | set(follow)
    modules: set[str] = set()
    sought = cache(located)  # a name is imported by many
    while waiting:
        name = waiting.pop()
        modules.add(name)
        path = sought(name)
        if path is not None and _own(name, path, roots):
            waiting |= _imports(path, name, sought) - modules
    return modules


def located(module: str) -> Path | None:
    """The source file of a module, without importing it or its package; None where there is none here."""
    loaded = getattr(sys.modules.get(module), "__file__", None)
    if loaded:
        return _source(Path(loaded))
    parts = module.split(".")
    if not all(part.isidentifier() for part in parts):
        return None
    try:
        spec = find_spec(parts[0])
    except (ImportError, ValueError):
        return None
    if spec is None or len(parts) == 1:
        return _source(Path(spec.origin)) if spec is not None and spec.origin else None
    places = (Path(folder, *parts[1:]) for folder in spec.submodule_search_locations or ())
    return next((path for place in places for path in _files(place) if path.is_file()), None)


def digests(modules: Iterable[str]) -> dict[str, str]:
    """Module name to the sha256 of its source; modules that say nothing (an empty `__init__`) are left out."""
    files = ((name, located(name)) for name in sorted(modules))
    return {name: digest(path) for name, path in files if path is not None and _says(path)}


def digest_of(sources: Mapping[str, str]) -> str:
    """sha256 over module names and the digests of their sources, in their order."""
    return hashlib.sha256("".join(f"{name} {one}\n" for name, one in sources.items()).encode()).hexdigest()


def digest(path: Path) -> str:
    """sha256 of a source file's bytes."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _files(place: Path) -> tuple[Path, Path]:
    return place.with_name(f"{place.name}.py"), place / "__init__.py"


def _source(path: Path) -> Path | None:
    return path if path.suffix == ".py" and path.is_file() else None


def _own(name: str, path: Path, roots: Collection[str]) -> bool:
    """Whether a module is read: neither the instrument nor an installed package."""
    root = package(name)
    if root == INSTRUMENT or root in sys.stdlib_module_names:
        return False
    return root in roots or not any(path.is_relative_to(place) for place in INSTALLED)


def installed(module: str) -> bool:
    """Whether a module lies among the installed packages."""
    path = located(module)
    return path is not None and any(path.is_relative_to(place) for place in INSTALLED)


def _says(path: Path) -> bool:
    """Whether a file holds more than words: two empty ones are alike and share nothing."""
    return _read(path, path.stat().st_mtime_ns).says


@dataclass(frozen=True)
class _Source:
    """What counts of a source file: whether it is more than words, what it imports, the dotted names in its strings."""

    says: bool
    imports: tuple[ast.Import | ast.ImportFrom, ...]
    calls: frozenset[str]
    strings: frozenset[str]


@lru_cache(maxsize=512)
def _read(path: Path, changed: int) -> _Source:
    """A file as it was at this time; one that is no Python imports nothing."""
    try:
        tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError):
        return _Source(True, (), frozenset(), frozenset())
    nodes = list(ast.walk(tree))
    return _Source(
        says=any(not (isinstance(one, ast.Expr) and isinstance(one.value, ast.Constant)) for one in tree.body),
        imports=tuple(node for node in nodes if isinstance(node, ast.Import | ast.ImportFrom)),
        calls=frozenset().union(*(_called(node) for node in nodes if isinstance(node, ast.Call))),
        strings=frozenset(
            node.value
            for node in nodes
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and "." in node.value
        ),
    )


def _imports(path: Path, module: str, sought: Locate) -> set[str]:
    """Names of the modules that a source file imports, with the packages around them."""
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    source = _read(path, path.stat().st_mtime_ns)
    names = set(source.calls) | {name for name in source.strings if name in sys.modules}
    for node in source.imports:
        names |= (
            set(_from(node, package, sought))
            if isinstance(node, ast.ImportFrom)
            else {alias.name for alias in node.names}
        )
    return {whole for name in names for whole in _packages(name)}


def _from(node: ast.ImportFrom, package: str, sought: Locate) -> Iterator[str]:
    """What `from x import y` reaches: x, the module y, or the module that y was made in."""
    parts = package.split(".") if node.level else []
    base = ".".join([*parts[: len(parts) - node.level + 1], *filter(None, [node.module])])
    yield base
    for alias in node.names:
        name = f"{base}.{alias.name}"
        made = getattr(vars(sys.modules[base]).get(alias.name), "__module__", None) if base in sys.modules else None
        if name in sys.modules or (base.split(".")[0] not in sys.stdlib_module_names and sought(name)):
            yield name
        elif isinstance(made, str):
            yield made


def _called(node: ast.Call) -> set[str]:
    """The module that `import_module("name")` or `__import__("name")` asks for."""
    name = getattr(node.func, "attr", getattr(node.func, "id", ""))
    first = node.args[0] if node.args else None
    if name in ("import_module", "__import__") and isinstance(first, ast.Constant) and isinstance(first.value, str):
        return {first.value}
    return set()


def _packages(name: str) -> Iterator[str]:
    """A module and the packages that hold it: `a`, `a.b`, `a.b.c`."""
    parts = name.split(".")
    yield from (".".join(parts[: count + 1]) for count in range(len(parts)))
