"""Programs that know nothing of onepot, on a mount: what they say is what they say of the
files that were packed. What isn't installed is skipped, with its name."""

import ast
import contextlib
import hashlib
import os
import sys

import harness
import tree
from harness import Skip, check, check_equal, environment, need_program, run

# Each Python part runs on its own: with this folder's modules out of its way.
PYTHON = sys.executable


def python(code, *arguments, modules="", timeout=200):
    """Output of a Python program, as the literal it prints last. If it can't import what may be missing
    here, it is skipped: some take seconds to import, so nothing tries that before."""
    done = run(PYTHON, "-I", "-c", code, *arguments, timeout=timeout, status=None if modules else 0,
               env=environment(PYTHONDONTWRITEBYTECODE="1", OMP_NUM_THREADS="1"))
    if done.returncode != 0:
        last = done.stderr.decode(errors="replace").rstrip().rpartition("\n")[2]
        lacks = [f"ModuleNotFoundError: No module named '{name}'" for name in modules.split(", ")]
        check(last in lacks, f"a program with {modules}: {done.stderr!r}")
        raise Skip(f"no Python modules {modules} here: {last}")
    return ast.literal_eval(done.stdout.decode().splitlines()[-1])


def packed(work, source, kind="tar"):
    """An archive of a directory; kinds that can't be made here are a skip."""
    if kind == "SquashFS":
        need_program("mksquashfs")
        image = work / "packed.squashfs"
        run("mksquashfs", source, image, "-noappend", "-quiet", "-no-progress", "-comp", "gzip")
        return image
    if kind == "onepot":
        harness.need_command("pack")
        harness.onepot("pack", "-o", work / "packed.onepot", source)
        return work / "packed.onepot"
    need_program("tar")
    run("tar", "--format=pax", "--numeric-owner", "--xattrs", "-cf", work / "packed.tar", "-C",
        source, ".")
    return work / "packed.tar"


def check_same_on_mount(work, source, code, kind="tar"):
    """A Python program says of the mount what it says of the source."""
    expected = python(code, source)
    with work.mount(packed(work, source, kind)) as mount:
        check_equal(python(code, mount.path), expected, "what the program says of the mount")
        return expected


# ---- Python ----

WALK = """
import os, sys, hashlib
root, found = sys.argv[1], []
for directory, directories, files in os.walk(root):
    directories.sort()
    for name in sorted(files):
        path = os.path.join(directory, name)
        with open(path, "rb") as f:
            data = f.read()
        st = os.stat(path)
        found.append((os.path.relpath(path, root), len(data), st.st_size,
                      hashlib.sha256(data).hexdigest()))
print((len(found), hashlib.sha256(repr(found).encode("utf-8", "surrogateescape")).hexdigest()))
"""


def dataset(work):
    source = work.make("source")
    for part in (tree.build_sizes, tree.build_names, tree.build_directories):
        part(os.fsencode(source), tree.PAX)
    return source


def test_python_walk_and_open(work):
    count, _ = check_same_on_mount(work, dataset(work), WALK)
    check(count > 700, f"only {count} files were read")


NUMPY = """
import sys, os, numpy
root, said = sys.argv[1], []
for name in sorted(os.listdir(root)):
    path = os.path.join(root, name)
    if name.endswith(".npy"):
        whole = numpy.load(path)
        mapped = numpy.load(path, mmap_mode="r")
        assert isinstance(mapped, numpy.memmap)
        said.append((name, whole.shape, str(whole.dtype), int(whole.sum()), int(mapped.sum()),
                     int(mapped[::7].sum()), bool((whole == mapped).all())))
        raw = numpy.fromfile(path, dtype="u1", offset=128)
        said.append(int(raw.astype("u8").sum()))
    else:
        with numpy.load(path) as archive:
            said.append((name, {k: int(archive[k].sum()) for k in sorted(archive)}))
print(said)
"""


def test_numpy(work):
    source = work.make("source")
    python("""
import sys, os, numpy
rng = numpy.random.default_rng(1)
os.chdir(sys.argv[1])
for i, shape in enumerate([(0,), (1,), (1000, 33), (700, 700), (3, 5, 7)]):
    numpy.save(f"a{i}.npy", rng.integers(0, 1000, shape))
numpy.savez("z.npz", x=numpy.arange(10_000), y=rng.integers(0, 9, 5))
numpy.savez_compressed("c.npz", x=numpy.arange(10_000))
print(0)
""", source, modules="numpy")
    check_same_on_mount(work, source, NUMPY)


PIL = """
import sys, os, hashlib
from PIL import Image
root, said = sys.argv[1], []
for directory, directories, files in os.walk(root):
    directories.sort()
    for name in sorted(files):
        with Image.open(os.path.join(directory, name)) as image:
            pixels = image.convert("RGB").resize((32, 32)).tobytes()
            said.append((name, image.size, image.format, hashlib.sha256(pixels).hexdigest()))
print(said)
"""


def make_images(source, classes=4, each=12):
    python(f"""
import sys, os, random
from PIL import Image
rng = random.Random(1)
for c in range({classes}):
    directory = os.path.join(sys.argv[1], f"class-{{c}}")
    os.mkdir(directory)
    for i in range({each}):
        size = (rng.randrange(20, 200), rng.randrange(20, 200))
        image = Image.frombytes("RGB", size, rng.randbytes(size[0] * size[1] * 3))
        image.save(os.path.join(directory, f"{{i}}." + ("jpeg", "png")[i % 2]))
print(0)
""", source, modules="PIL")


def test_pil(work):
    source = work.make("source")
    make_images(source)
    check_same_on_mount(work, source, PIL)


# As ImageNet's training loop has it: shuffled, two worker processes, two epochs.
TORCH = """
import sys, torch, torchvision
from torchvision import transforms
torch.set_num_threads(1)
shape = transforms.Compose([transforms.Resize(40), transforms.CenterCrop(32),
                            transforms.ToTensor()])

def train(root):
    data = torchvision.datasets.ImageFolder(root, shape)
    loader = torch.utils.data.DataLoader(data, batch_size=7, shuffle=True, num_workers=2,
                                         multiprocessing_context="fork",
                                         generator=torch.Generator().manual_seed(1))
    said = [data.classes, len(data)]
    for epoch in range(2):
        for images, labels in loader:
            said.append((labels.tolist(), round(float(images.double().sum()), 6)))
    return said

print([train(root) for root in sys.argv[1:]])
"""


@harness.within(400)
def test_torch_image_folder(work):
    source = work.make("source")
    make_images(source)
    with contextlib.ExitStack() as stack:
        roots = [source]
        for i, kind in enumerate(("tar", "onepot", "SquashFS")):
            try:
                archive = packed(work, source, kind)
            except Skip as skip:
                print(f"skipped part: {kind}: {skip}")
                continue
            roots.append(stack.enter_context(work.mount(archive, name=f"mount-{i}")).path)
        check(len(roots) > 1, "nothing could be packed")
        said = python(TORCH, *roots, timeout=300, modules="PIL, torch, torchvision")
    for found in said[1:]:
        check_equal(found, said[0], "what training sees on a mount")


def test_python_package(work):
    source = work.make("source")
    package = os.path.join(source, "package")
    os.makedirs(os.path.join(package, "inner"))
    tree.write(os.path.join(package, "__init__.py"), b"from .inner import answer\n")
    tree.write(os.path.join(package, "inner", "__init__.py"),
               b"from importlib import resources\n"
               b"answer = int(resources.files(__name__).joinpath('data.txt').read_text())\n")
    tree.write(os.path.join(package, "inner", "data.txt"), b"42\n")
    with work.mount(packed(work, source)) as mount:
        said = python("import sys; sys.path.insert(0, sys.argv[1]); import package\n"
                      "print((package.answer, package.__file__))", mount.path)
        check_equal(said, (42, mount / "package/__init__.py"), "the package")
        # Byte code can't be written; that is no error either.
        check_equal(python("import sys; sys.dont_write_bytecode = False\n"
                           "sys.path.insert(0, sys.argv[1]); import package\n"
                           "print(package.answer)", mount.path), 42, "the package again")


# ---- the usual programs ----

def test_rsync(work):
    need_program("rsync")
    source = work.make("source")
    tree.build(source, tree.ONEPOT)
    with work.mount(packed(work, source, "onepot")) as mount:
        copy = work.make("copy")
        run("rsync", "-aHXS", "--numeric-ids", mount.path + "/", copy + "/")
        tree.compare(tree.snapshot(copy), tree.snapshot(mount.path), "the copy by rsync")
        for again in (["-aHXnic"], ["-aHXni", "--size-only"], ["-aHXni"]):
            said = run("rsync", *again, "--numeric-ids", "--delete", mount.path + "/",
                       copy + "/").stdout
            check_equal(said, b"", f"what rsync {again} would still do")
        said = run("rsync", "-aHXnic", "--numeric-ids", "--delete", source + "/",
                   mount.path + "/").stdout
        check_equal(said, b"", "what rsync would do to the mount")


def test_cp_and_diff(work):
    need_program("cp", "diff")
    source = work.make("source")
    tree.build(source, tree.ONEPOT)
    with work.mount(packed(work, source, "onepot")) as mount:
        run("cp", "-a", mount.path, work / "copy")
        tree.compare(tree.snapshot(work / "copy"), tree.snapshot(source), "the copy by cp -a")
        for part in ("sizes", "names", "many", "modes"):
            run("diff", "-r", "--no-dereference", os.path.join(source, part), mount / part)


def test_find(work):
    need_program("find")
    source = dataset(work)
    stamp = os.path.join(source, "stamp")
    tree.write(stamp, b"")
    for i, path in enumerate(sorted(tree.walk(source))):
        if path:
            os.utime(os.path.join(os.fsencode(source), path), (1_500_000_000 + i * 60,) * 2)
    os.utime(stamp, (1_500_030_000,) * 2)
    with work.mount(packed(work, source)) as mount:
        for test in (["-type", "f"], ["-type", "d"], ["-newer", "stamp"], ["-name", "*ä*"],
                     ["!", "-newer", "stamp", "-type", "f", "-size", "-2"],
                     ["-exec", "cat", "{}", "+", "-type", "f", "-name", "file*"]):
            if "-exec" in test:
                test = ["-type", "f", "-name", "file*1*", "-exec", "cat", "{}", ";"]
            said = [sorted(run("find", ".", *test, cwd=root).stdout.splitlines())
                    for root in (mount.path, source)]
            check(said[1], f"find {test} finds nothing")
            check_equal(said[0], said[1], f"find {test}")


def test_grep(work):
    need_program("grep")
    source = work.make("source")
    for directory in range(5):
        os.mkdir(os.path.join(source, f"d{directory}"))
        for i in range(40):
            text = "".join(f"line {n} of {i}{' needle' if n * i % 97 == 5 else ''}\n"
                           for n in range(100))
            tree.write(os.path.join(source, f"d{directory}", f"{i}.txt"), text.encode())
    with work.mount(packed(work, source)) as mount:
        for options in (["-rn"], ["-rl"], ["-rLi"], ["-rc", "--include=*1.txt"]):
            said = [sorted(run("grep", *options, "needle", ".", cwd=root).stdout.splitlines())
                    for root in (mount.path, source)]
            check(said[1], "nothing to be found")
            check_equal(said[0], said[1], f"grep {options}")


def test_sha256sum(work):
    need_program("sha256sum")
    source = dataset(work)
    sums = work / "sums"
    with open(sums, "wb") as f:
        for path in sorted(tree.walk(source)):
            here = os.path.join(os.fsencode(source), path)
            if path.startswith(b"sizes/") or path.startswith(b"many/"):
                with open(here, "rb") as data:
                    f.write(hashlib.sha256(data.read()).hexdigest().encode() + b"  " + path + b"\n")
    with work.mount(packed(work, source)) as mount:
        said = run("sha256sum", "--check", "--strict", sums, cwd=mount.path).stdout
        check(said.count(b": OK\n") > 700, "too few sums")


def test_tar_of_a_mount(work):
    """The listing of a tar of the mount is that of the archive, line by line."""
    need_program("tar")
    source = work.make("source")
    tree.build(source, tree.Limits(special=False))
    archive = packed(work, source)
    with work.mount(archive) as mount:
        run("tar", "--format=pax", "--numeric-owner", "--xattrs", "-cf", work / "again.tar", "-C",
            mount.path, ".")
    lists = []
    for path in (archive, work / "again.tar"):
        lines = run("tar", "--full-time", "--quoting-style=escape", "--numeric-owner", "-tvf",
                    path).stdout.splitlines()
        # Which of several names comes first, and is the file, is the order of a directory.
        lists.append(sorted(b" ".join(line.split(None, 5)) for line in lines
                            if not any(word in line for word in
                                       (b" link to ", b"links", b"linked", b"everything"))))
    check(len(lists[0]) > 1000, "too short a listing")
    check_equal(lists[1], lists[0], "the listing")


def test_sqlite(work):
    source = work.make("source")
    python("""
import sys, sqlite3
db = sqlite3.connect(sys.argv[1] + "/data.db")
db.execute("create table t (i integer primary key, x blob)")
db.executemany("insert into t values (?, ?)", ((i, bytes([i % 256]) * 300) for i in range(5000)))
db.commit()
print(0)
""", source, modules="sqlite3, _sqlite3")
    check_same_on_mount(work, source, """
import sys, sqlite3
said = []
for options in ("mode=ro", "immutable=1", "mode=ro&cache=private"):
    db = sqlite3.connect(f"file:{sys.argv[1]}/data.db?{options}", uri=True)
    db.execute("pragma mmap_size=1000000")
    said.append(db.execute("select count(*), sum(i), sum(length(x)) from t").fetchall())
    said.append(db.execute("select hex(x) from t where i = 4321").fetchone()[0][:8])
    said.append(db.execute("pragma integrity_check").fetchall())
print(said)
""")


def test_git(work):
    need_program("git")
    source = work.make("source")
    env = environment(GIT_OPTIONAL_LOCKS="0", GIT_CONFIG_NOSYSTEM="1", HOME=work.path,
                      GIT_AUTHOR_NAME="A", GIT_AUTHOR_EMAIL="a@b", GIT_COMMITTER_NAME="A",
                      GIT_COMMITTER_EMAIL="a@b", GIT_PAGER="cat")

    def git(root, *command):
        return run("git", "-C", root, *command, env=env).stdout

    git(source, "init", "-q")
    for i in range(30):
        tree.write(os.path.join(source, f"file-{i}"), b"%d\n" % i * 50)
    git(source, "add", ".")
    git(source, "commit", "-q", "-m", "first")
    git(source, "gc", "-q")
    tree.write(os.path.join(source, "file-3"), b"changed\n")
    git(source, "commit", "-q", "-a", "-m", "second")
    commands = (["status", "--porcelain"], ["log", "--stat"], ["show", "HEAD~1:file-7"],
                ["grep", "-c", "changed"], ["diff", "HEAD~1"], ["ls-files", "--debug"])
    expected = [git(source, *c) for c in commands[:-1]]
    with work.mount(packed(work, source)) as mount:
        for command, said in zip(commands, expected):
            check_equal(git(mount.path, *command), said, f"git {command}")
        git(mount.path, "fsck", "--full")
        git(work.path, "clone", "-q", mount.path, "clone")
        check_equal(git(work / "clone", "log"), git(source, "log"), "git log of a clone")
        tree.write(work / "clone/file-9", b"x")
        check_equal(git(work / "clone", "status", "--porcelain"), b" M file-9\n", "the clone")


def test_programs_run_from_a_mount(work):
    """A mapped, executable file; a script with its interpreter line; a shared library."""
    source = work.make("source")
    for name in ("cat", "sh"):
        harness.shutil.copy(harness.shutil.which(name), os.path.join(source, name))
    tree.write(os.path.join(source, "script"), b"#!/bin/sh\necho script $1\n")
    os.chmod(os.path.join(source, "script"), 0o755)
    with work.mount(packed(work, source)) as mount:
        check_equal(run(mount / "cat", mount / "script").stdout, b"#!/bin/sh\necho script $1\n",
                    "cat")
        check_equal(run(mount / "sh", "-c", "echo from sh").stdout, b"from sh\n", "sh")
        check_equal(run(mount / "script", "1").stdout, b"script 1\n", "the script")


def test_locks(work):
    """HDF5, SQLite and others lock what they read."""
    source = work.make("source")
    tree.write(os.path.join(source, "f"), b"1")
    check_same_on_mount(work, source, """
import fcntl, sys
with open(sys.argv[1] + "/f", "rb") as a, open(sys.argv[1] + "/f", "rb") as b:
    fcntl.flock(a, fcntl.LOCK_SH)
    fcntl.flock(b, fcntl.LOCK_SH | fcntl.LOCK_NB)
    fcntl.flock(b, fcntl.LOCK_UN)
    fcntl.flock(a, fcntl.LOCK_EX | fcntl.LOCK_NB)
    try:
        fcntl.flock(b, fcntl.LOCK_SH | fcntl.LOCK_NB)
        print("locked twice")
    except BlockingIOError:
        fcntl.lockf(a, fcntl.LOCK_SH)
        print("'locks'")
""")


if __name__ == "__main__":
    harness.main(globals(), in_memory=True)
