#!/usr/bin/env python3
"""Checks links in the repository's Markdown files and, given `target/doc`, in rustdoc's pages of modules, including the
guides. External links are not followed."""

import html.parser
import pathlib
import re
import subprocess
import sys
import urllib.parse

REPOSITORY = re.search(r'^repository = "(.*)"', pathlib.Path("Cargo.toml").read_text(), re.MULTILINE)[1]


def slug(heading):
    """Returns the id that GitHub gives a heading."""
    text = re.sub(r"\[([^]]*)\][(\[][^])]*[)\]]", r"\1", heading).strip().lower()
    return re.sub(r"[^\w\- ]", "", text).replace(" ", "-")


class Markdown:
    def __init__(self, text):
        text = re.sub(r"^( *)(```|~~~).*?^ *\2[^\n]*$", "", text, flags=re.MULTILINE | re.DOTALL)
        self.ids = {slug(heading) for heading in re.findall(r"^#+ (.*)", text, re.MULTILINE)}
        self.ids.update(re.findall(r'<a id="([^"]*)"', text))
        text = re.sub(r"`[^`\n]*`", "", text)
        self.links = re.findall(r"\]\(<?([^)\s>]+)>?\)", text) + re.findall(r"^ *\[[^]]*\]: *(\S+)", text, re.MULTILINE)


class Html(html.parser.HTMLParser):
    def __init__(self, text):
        super().__init__()
        self.ids, self.links = set(), []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        for name, value in attributes:
            if name == "id":
                self.ids.add(value)
            elif name == "href" and tag == "a":
                self.links.append(value)


pages = {}


def page(file):
    if file not in pages:
        pages[file] = (Html if file.suffix == ".html" else Markdown)(file.read_text())
    return pages[file]


def is_dead(file, link):
    """Returns true if a link's file or anchor does not exist."""
    target, _, part = link.partition("#")
    if target.startswith(REPOSITORY + "/blob/main/"):
        at = pathlib.Path(target.removeprefix(REPOSITORY + "/blob/main/"))
    elif re.match(r"[a-z]+:", target):
        return False
    else:
        at = (file.parent / urllib.parse.unquote(target)) if target else file
    # GitHub shows folders, but a rustdoc link must name a file.
    if not at.exists() or (file.suffix == ".html" and at.is_dir()):
        return True
    if not part or at.suffix not in (".md", ".html") or "src" in at.parts:
        return False
    return part not in page(at).ids


def main():
    tracked = subprocess.run(["git", "ls-files", "*.md"], capture_output=True, text=True, check=True).stdout
    files = [pathlib.Path(name) for name in tracked.split() if not pathlib.Path(name).is_symlink()]
    for root in sys.argv[1:]:
        # Skips items' pages, which contain other crates' text through blanket implementations.
        for library in ("lockkeeper", "lockkeeper_store"):
            files += sorted(pathlib.Path(root, library).rglob("index.html"))
    dead = [f"{file}: {link}" for file in files for link in page(file).links if is_dead(file, link)]
    if dead:
        sys.exit("dead links:\n" + "\n".join(dead))
    print(f"{sum(len(page(file).links) for file in files)} links in {len(files)} pages")


main()
