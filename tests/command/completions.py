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
    ("onepot cat 'two packed.tar' im", "onepot cat 'two packed.tar' img/"),
    ("onepot cat packed.tar 'a b/o", "onepot cat packed.tar 'a b/one.jpg'"),
    ("onepot cat packed.tar a\\ b/o", "onepot cat packed.tar a\\ b/one.jpg"),
    ("onepot cat ~/packed.tar im", "onepot cat ~/packed.tar img/"),
    ("onepot cat $HOME/packed.tar im", "onepot cat $HOME/packed.tar img/"),
    ("onepot cat packed.tar colon", "onepot cat packed.tar colon:"),
    ("onepot cat packed.tar back", "onepot cat packed.tar back\\\\"),
]

# A shell must quote these names, which come from an archive.
HOSTILE = ["$(touch pwned)", "`touch pwned`", ";touch pwned", "'q", '"q', "\\b", "!1", "#c", "*", "&",
           "{a,b}", "<(touch pwned)", "a b", "a=b", "a:b", "@h", "~root", "'q'", "\"$(touch pwned)\""]

# Folders with a quote in their name, which opens none, and what is in them.
NESTED = ["n/\\'d/", 'n/\\"e/', "\\'f/"]

MANY = 1500  # more names than are shown


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
            # Without bells, and the sequences that move the cursor or colour what is shown.
            self.shown += re.sub(r"\x1b(\[[0-9;?]*[A-Za-z]|[=>])|\x07", "", data)

    def complete(self, typed, line):
        self.shown = ""
        self.type(typed + "\t")
        self.wait_for(line)
        self.give_up_line()

    def give_up_line(self):
        self.type("\x15")
        self.shown = ""
        self.type("echo ne''xt\n")
        self.wait_for("next\r")

    def use(self, typed, shown, then=""):
        """The line that `typed` becomes is run, with `then` typed behind it."""
        self.shown = ""
        self.type(f"{typed}\t{then}\n")
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
        # Of many names the last one is shown, too, so that no start is completed that it hasn't.
        shell.use("onepot cat many.tar ", "content last", then="z")
        # An archive on storage that hangs: the shell goes on without its members.
        shell.type("onepot cat hangs.tar im\t")
        with open("asked") as f:
            f.read()
        shell.give_up_line()
        assert not os.path.exists("pwned"), f"{name}: a name was run"
        print(f"{name}: {len(LINES)} lines, {len(HOSTILE)} hostile names: ok")
    finally:
        shell.end()


def pack_names(onepot):
    members = {f"h{i:02}/{name}": f"content {i}." for i, name in enumerate(HOSTILE)}
    for name in ("n/'d/$(touch pwned)", 'n/"e/`touch pwned`', "'f/$(touch pwned)"):
        members[name] = "content nested"
    for name in ("img/one.jpg", "img/two.jpg", "class=1/x.jpg", "a b/one.jpg", "colon:1", "colon:2",
                 "back\\1", "back\\2"):
        members[name] = name
    pack(onepot, "packed.tar", members)
    pack(onepot, "two packed.tar", members)
    many = {f"ma{i:04}": "" for i in range(MANY)}
    pack(onepot, "many.tar", {**many, "mz": "content last"})


def pack(onepot, archive, members):
    with tempfile.TemporaryDirectory() as folder:
        for name, content in members.items():
            path = os.path.join(folder, name)
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path, "w") as f:
                f.write(content)
        subprocess.run([onepot, "pack", "-q", "-o", archive, folder], check=True)


def main():
    onepot = os.path.abspath(sys.argv[1])
    with tempfile.TemporaryDirectory(dir=os.environ.get("ONEPOT_TESTS_MEMORY")) as folder:
        os.chdir(folder)
        bin_folder = os.path.join(folder, ".bin")
        os.mkdir(bin_folder)
        os.mkfifo("asked")
        with open(f"{bin_folder}/onepot", "w") as f:
            f.write(f"""#!/bin/sh
case $1,$* in completions,*hangs.tar*) echo >asked; exec sleep 200 ;; esac
exec '{onepot}' "$@"
""")
        os.chmod(f"{bin_folder}/onepot", 0o755)
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
