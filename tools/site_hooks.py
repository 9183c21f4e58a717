"""A hook of MkDocs for the documentation site."""

import re
from typing import Any, Final

#: Inline code of at most 24 characters. Code blocks start with a tag.
_SHORT_CODE: Final = re.compile(r"<code>(?=[^<]{1,24}</code>)")


def on_page_content(html: str, **_: Any) -> str:
    """Return the page with a class on short inline code, which `site.css` does not wrap."""
    return _SHORT_CODE.sub('<code class="short">', html)
