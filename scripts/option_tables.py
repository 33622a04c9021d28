"""Writes the tables of options in docs/operations.md from the settings: `python -m scripts.option_tables`."""

from pathlib import Path
from typing import Final

from apcore_a2a.settings import TABLE, Setting

PAGE: Final = Path(__file__).parents[1] / "docs" / "operations.md"
GROUPS: Final = {"keywords": "", "limits": "limits", "tls": "tls"}
MIB: Final = 2**20
_HEAD: Final = {
    "keywords": "| keyword | flag, variable | default | meaning |\n|---|---|---|---|\n",
    "limits": "| `limits=Limits(…)` | flag, variable | default | meaning |\n|---|---|---|---|\n",
    "tls": "| `tls=TLS(…)` | flag, variable | default | meaning |\n|---|---|---|---|\n",
}


def default_of(setting: Setting) -> str:
    """Return the default in words, such as `10,000`, `off` or `10485760 (10 MiB)`."""
    value = setting.default
    if value in (None, "", (), {}):
        return setting.option.unset
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, str):
        return f"`{value}`"
    if value >= MIB:
        return f"{value} ({value // MIB} MiB)"
    if value >= 10_000 or setting.group == "limits":
        return f"{value:,}"
    return f"{value}"


def row_of(setting: Setting) -> str:
    names = ", ".join(f"`{name}`" for name in (*setting.flags, *setting.variables)) or "only in Python"
    return f"| `{setting.name}` | {names} | {default_of(setting)} | {setting.option.help} |\n"


def table_of(name: str) -> str:
    return _HEAD[name] + "".join(row_of(setting) for setting in TABLE if setting.group == GROUPS[name])


def render(page: str) -> str:
    """Return the page with its tables as the settings have them."""
    for name in GROUPS:
        begin = f"<!-- {name}: written by `python -m scripts.option_tables` -->\n"
        end = f"<!-- end of {name} -->\n"
        before, _, rest = page.partition(begin)
        _, found, after = rest.partition(end)
        if not found:
            raise ValueError(f"{PAGE.name} has no place for the table {name}")
        page = f"{before}{begin}\n{table_of(name)}\n{end}{after}"
    return page


if __name__ == "__main__":
    PAGE.write_text(render(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
