"""The web page that translates, by requests to the server or in the browser itself."""

from __future__ import annotations

import json
from importlib.resources import files
from typing import Any


def page(backend: str, **constants: Any) -> str:
    """Return the HTML page. backend: server or browser. constants: values for its script."""
    folder = files("seq2seq.page")
    html, script = (
        folder.joinpath(name).read_text("utf-8") for name in ("page.html", f"{backend}.js")
    )
    # No "</script>" in values.
    values = {name: json.dumps(value).replace("<", "\\u003c") for name, value in constants.items()}
    declared = "".join(f"const {name} = {value};\n" for name, value in values.items())
    return html.replace("// BACKEND\n", declared + script)
