#!/usr/bin/env python3
"""Completions as a person gets them: each shell at a terminal of its own, with the script that the
program prints, completes lines at a press of the tab key.

Usage: completions.py ONEPOT. A shell that is not there is left out, and named.
"""

import os
import pty
import re
import select
import shutil
import subprocess
import sys
import tempfile
import time

SECONDS = 120  # until a shell must have answered

# What is typed before the tab key, and what the line then has.
LINES = [
    ("onepot ls --js", "onepot ls --json"),
    ("onepot ver", "onepot verify"),
    ("onepot completions zs", "onepot completions zsh"),
    ("onepot cat plai", "onepot cat plain.tar"),
    ("onepot cat 'two wo", "onepot cat 'two words.tar'"),
    ("onepot cat two\\ w", "onepot cat two\\ words.tar"),
    ("onepot extract -C fol", "onepot extract -C folder/"),
    ("onepot pack --output=fol", "onepot pack --output=folder/"),
    ("onepot run plain.tar -- onepo", "onepot run plain.tar -- onepot"),
    ("onepot run plain.tar -- cat plai", "onepot run plain.tar -- cat plain.tar"),
    ("onepot ls pa", "onepot ls packed.tar"),
    ("onepot cat packed.tar im", "onepot cat packed.tar img/"),
    ("onepot ls packed.tar img/o", "onepot ls packed.tar img/one.jpg"),
    ("onepot extract packed.tar plai", "onepot extract packed.tar plain.tar"),
    ("onepot info packed.tar --include=im", "onepot info packed.tar --include=img/"),
    ("onepot cat packed.tar class=1/", "onepot cat packed.tar class=1/x.jpg"),
]

# A shell must quote these names, which come from an archive.
HOSTILE = ["$(touch pwned)", "`touch pwned`", ";touch pwned", "'q", '"q', "\\b", "!1", "#c", "*", "&",
           "{a,b}", "<(touch pwned)", "a b", "a=b", "a:b", "@h", "~root", "'q'", "\"$(touch pwned)\""]

# Folders with a quote in their name, which opens none, and what is in them.
NESTED = ["n/\\'d/", 'n/\\"e/']


class Shell:
    """A shell at a terminal, which shows what is typed."""

    def __init__(self, command, begin, env):
        pid, self.fd = pty.fork()
        if pid == 0:
            os.execvpe(command[0], command, env)
        self.pid = pid
        self.shown = ""
        for line in begin:
            self.type(line + "\n")
        self.type("echo rea''dy\n")
        self.wait_for("ready\r")

    def type(self, text):
        os.write(self.fd, text.encode())

    def wait_for(self, text):
        end = time.monotonic() + SECONDS
        while text not in self.shown:
            if not select.select([self.fd], [], [], max(0.0, end - time.monotonic()))[0]:
                raise AssertionError(f"waited in vain for {text!r}; it shows {self.shown[-600:]!r}")
            data = os.read(self.fd, 4096).decode(errors="replace")
            # Without the sequences that move the cursor or colour what is shown.
            self.shown += re.sub(r"\x1b(\[[0-9;?]*[A-Za-z]|[=>])", "", data)

    def complete(self, typed, line):
        self.shown = ""
        self.type(typed + "\t")
        self.wait_for(line)
        self.type("\x15")  # the line is given up
        self.shown = ""
        self.type("echo ne''xt\n")
        self.wait_for("next\r")

    def use(self, typed, shown):
        """The line that `typed` becomes is run."""
        self.shown = ""
        self.type(typed + "\t\n")
        self.wait_for(shown)

    def end(self):
        os.close(self.fd)
        os.waitpid(self.pid, 0)


def environment(bin_folder):
    return {"PATH": f"{bin_folder}:/usr/bin:/bin", "TERM": "dumb", "HOME": os.getcwd(),
            "LC_ALL": "C.UTF-8", "PS1": "> ", "INPUTRC": "/dev/null"}


def try_at_terminal(name, command, begin, bin_folder):
    shell = Shell(command, begin, environment(bin_folder))
    try:
        for typed, line in LINES:
            shell.complete(typed, line)
        for typed in NESTED:  # as the shell itself completes the folder
            shell.use(f"onepot cat packed.tar {typed}", "content nested")
        for i in range(len(HOSTILE)):
            shell.use(f"onepot cat packed.tar h{i:02}/", f"content {i}.")
        assert not os.path.exists("pwned"), f"{name}: a name was run"
        print(f"{name}: {len(LINES)} lines, {len(HOSTILE)} hostile names: ok")
    finally:
        shell.end()


def pack_names(onepot):
    members = {f"h{i:02}/{name}": f"content {i}." for i, name in enumerate(HOSTILE)}
    members["n/'d/$(touch pwned)"] = members['n/"e/`touch pwned`'] = "content nested"
    for name in ("img/one.jpg", "img/two.jpg", "class=1/x.jpg"):
        members[name] = name
    with tempfile.TemporaryDirectory() as folder:
        for name, content in members.items():
            path = os.path.join(folder, name)
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path, "w") as f:
                f.write(content)
        subprocess.run([onepot, "pack", "-o", "packed.tar", folder], check=True)


def main():
    onepot = os.path.abspath(sys.argv[1])
    with tempfile.TemporaryDirectory(dir=os.environ.get("ONEPOT_TESTS_MEMORY")) as folder:
        os.chdir(folder)
        bin_folder = os.path.join(folder, ".bin")
        os.mkdir(bin_folder)
        os.symlink(onepot, f"{bin_folder}/onepot")
        os.mkdir("folder")
        for name in ("plain.tar", "two words.tar"):
            with open(name, "wb"):
                pass
        pack_names(onepot)
        for shell in ("bash", "zsh", "fish"):
            with open(f"{shell}.completion", "wb") as f:
                subprocess.run([onepot, "completions", shell], check=True, stdout=f)
        tried = 0
        for shell, command, begin in (
                ("bash", ["bash", "--norc", "--noprofile", "-i"],
                 ["bind 'set enable-bracketed-paste off'", "source bash.completion"]),
                ("zsh", ["zsh", "-f", "-i"],
                 ["PS1='> '; unsetopt prompt_cr prompt_sp; zstyle ':completion:*' list-prompt ''",
                  "autoload -Uz compinit && compinit -u -D", "source ./zsh.completion"]),
                ("fish", ["fish", "--no-config", "-i"], ["source fish.completion"])):
            if shutil.which(shell) is None:
                print(f"left out: there is no {shell}")
                continue
            tried += 1
            try_at_terminal(shell, command, begin, bin_folder)
        os.chdir("/")
    sys.exit(0 if tried else 77)


main()
