"""A hook of mkdocs: links that leave docs/ lead to the repository or, if mkdocs.yml has no ``repo_url``, become names.

In the repository, documents link to files outside docs/, which a site does not contain.
"""

import re
from posixpath import dirname, join, normpath
from typing import Any

LINK = re.compile(r"(?<!!)\[([^\]]*)\]\(((?:\.\./)+[^)#\s]*)(#[^)\s]*)?\)")


def on_page_markdown(markdown: str, *, page: Any, config: Any, **_: Any) -> str:
    """Return the page's text with its links for the site."""

    def for_the_site(link: re.Match[str]) -> str:
        text, target, heading = link[1], link[2], link[3] or ""
        file = normpath(join("docs", dirname(page.file.src_uri), target))
        if file.startswith("docs/"):
            return link[0]
        if config.repo_url:
            return f"[{text}]({config.repo_url.rstrip('/')}/blob/HEAD/{file}{heading})"
        return text if text.replace("`", "") in file else f"{text} (`{file}`)"

    return LINK.sub(for_the_site, markdown)
