"""The import rules of the house, as declared in pyproject.toml."""

from importlinter.cli import lint_imports


def test_the_house_keeps_its_import_rules():
    assert lint_imports(config_filename="pyproject.toml", no_cache=True) == 0
