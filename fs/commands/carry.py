#!/usr/bin/env python3
"""Writes a C file of the texts that the program carries (carried.h): manual pages, licences, scripts, a source.

Pages are formatted by mandoc, so that man/ stays their one source. Licences of libraries that
are linked statically come from the packages that the libraries lie in, so that they are those
of the versions that were linked; a library without one is an error, because a program that
contains it may not be passed on so.
"""

import argparse
import os
import re
import subprocess
import sys

COMMON_LICENCES = "/usr/share/common-licenses"


def page_text(mandoc, page):
    text = subprocess.run([mandoc, "-T", "ascii", "-O", "width=80", page], check=True,
                          stdout=subprocess.PIPE).stdout.decode("ascii")
    return re.sub(".\b", "", text)  # bold and underlined letters


def page_name(page):
    name = os.path.basename(page).rsplit(".", 1)[0]
    return name[len("onepot-"):] if name.startswith("onepot-") else name


def ask_dpkg(root, *words):
    """What dpkg-query says of the packages of this system, or of those in a folder."""
    where = [f"--admindir={root}/var/lib/dpkg"] if root else []
    return subprocess.run(["dpkg-query", *where, *words], check=False, stdout=subprocess.PIPE,
                          stderr=subprocess.DEVNULL).stdout.decode()


def package_of(library, root):
    """The Debian package of a static library, and the root that it is for."""
    for place, where in ("/usr/lib/*-linux-gnu", root), ("/usr/lib/gcc/*", root), ("/usr/lib/gcc-cross/*", ""):
        found = ask_dpkg(where, "-S", f"{place}/lib{library}.a")
        if found:
            return sorted(found.splitlines())[0].rsplit(": ", 1)[0].split(",")[0], where
    sys.exit(f"lib{library}.a is in no package of Debian: its licence is not known")


def copyright_of(library, root):
    """Name and version of its source, and the text of its licences."""
    package, where = package_of(library, root)
    source = ask_dpkg(where, "-W", "-f", "${source:Package} ${source:Version}", package)
    with open(f"{where}/usr/share/doc/{package.split(':')[0]}/copyright", encoding="utf-8") as f:
        return source, f.read()


def licences_of(libraries, root):
    """Each source once, and the licences to which their texts refer."""
    found, common = {}, set()
    for library in libraries:
        source, text = copyright_of(library, root)
        found[source] = text
        common.update(re.findall(COMMON_LICENCES + r"/([A-Za-z][A-Za-z0-9]*(?:-[0-9.]*[0-9])?)", text))
    for name in sorted(common):
        path = os.path.realpath(os.path.join(COMMON_LICENCES, name))
        if not os.path.exists(path):
            sys.exit(f"{path}, to which a licence refers, is not there")
        with open(path, encoding="utf-8") as f:
            found[os.path.basename(path)] = f.read()
    return found


def literal(text):
    """A C string: a line for each line, octal escapes for all that is not plain."""
    lines = []
    for line in text.encode().splitlines(keepends=True) or [b""]:
        lines.append('    "' + "".join(
            chr(c) if 32 <= c < 127 and c not in b'"\\?' else f"\\{c:03o}" for c in line) + '"')
    return "\n".join(lines)


def table(name, texts):
    entries = "".join(f'    {{"{key}",\n{literal(text)}}},\n' if text is not None
                      else f'    {{"{key}", NULL}},\n' for key, text in texts.items())
    return f"const struct carried {name}[] = {{\n{entries}    {{NULL, NULL}},\n}};\n"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("out")
    parser.add_argument("pages", nargs="*")
    parser.add_argument("--mandoc", help="without it, the pages have no text")
    parser.add_argument("--licence", required=True, help="onepot's own")
    parser.add_argument("--mpi", required=True, help="the source of onepot-mpi")
    parser.add_argument("--completion", action="append", required=True, help="a script; its ending names the shell")
    parser.add_argument("--static", action="store_true", help="the libraries are in the program")
    parser.add_argument("--library", action="append", default=[])
    parser.add_argument("--root", default="", help="of the system that it is built for, if not this one")
    given = parser.parse_args()

    pages = {page_name(page): page_text(given.mandoc, page) if given.mandoc else None
             for page in given.pages}
    with open(given.licence, encoding="utf-8") as f:
        licences = {"onepot": f.read()}
    licences.update(licences_of(given.library, given.root) if given.static
                    else {"lib" + name: None for name in given.library})
    with open(given.mpi, encoding="utf-8") as f:
        mpi = f"const char carried_mpi[] =\n{literal(f.read())};\n"
    completions = {}
    for script in given.completion:
        with open(script, encoding="utf-8") as f:
            completions[script.rsplit(".", 1)[1]] = f.read()
    with open(given.out, "w", encoding="ascii") as out:
        out.write("#include <stddef.h>\n\n#include \"carried.h\"\n\n")
        out.write(table("carried_pages", pages) + "\n" + table("carried_licences", licences) + "\n" +
                  table("carried_completions", completions) + "\n" + mpi)


if __name__ == "__main__":
    main()
