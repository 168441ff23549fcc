#!/usr/bin/env python3
"""Symbolic links in data sets: what torchvision's ImageFolder has for the same tree, where that ends."""
import itertools
import os
import pickle
import random
import shutil
import subprocess
import tarfile
import tempfile
import unittest
import warnings

import onepot

try:
    import torchvision.datasets
except ImportError:
    torchvision = None

ONEPOT = os.environ["ONEPOT"]
TREES = 200
DIRECTORIES_MOST = 400  # in a walk; trees whose links multiply them are no use here
# The kernel takes 40 links in one path, and counts some twice where it begins a path anew, as when somebody renames
# or mounts meanwhile. So of the trees that are compared no path has half as many.
LINKS_MOST = 19


def setUpModule():
    global WORK
    WORK = os.path.realpath(tempfile.mkdtemp(prefix="onepot-links.", dir=os.environ.get("ONEPOT_TESTS_MEMORY")))
    os.environ["XDG_CACHE_HOME"] = os.path.join(WORK, "cache")


def tearDownModule():
    shutil.rmtree(WORK)


def plant(root, entries):
    """Make a tree: bytes are a file, text is a symbolic link, None a directory."""
    for name, content in entries.items():
        path = os.path.join(root, name)
        os.makedirs(path if content is None else os.path.dirname(path), exist_ok=True)
        if isinstance(content, str):
            os.symlink(content, path)
        elif content is not None:
            with open(path, "wb") as file:
                file.write(content)


def packed(root, path, kind):
    if kind == "tar":
        with tarfile.open(path, "w") as tar:
            tar.add(root, ".")
    else:
        subprocess.run([ONEPOT, "pack", "-qf", "-o", path, root], check=True, stderr=subprocess.DEVNULL)
    return path


def random_tree(rng):
    """Directories in three levels, files, and links of all kinds between them."""
    directories = [""]
    for level in range(3):
        for _ in range(rng.randint(1, 3)):
            above = rng.choice([d for d in directories if d.count("/") <= level])
            directories.append(os.path.join(above, rng.choice(["a", "b", "a-b", "a.d", "\xe9", "z"])))
    directories = sorted(set(directories))
    entries = {directory: None for directory in directories if directory}
    for i in range(rng.randint(1, 8)):
        name = os.path.join(rng.choice(directories), "%d%s" % (i, rng.choice([".png", ".JPG", ".txt", ""])))
        entries[name] = b"%d" % i * i
    for i in range(rng.randint(2, 16)):
        at = rng.choice(directories)
        name = os.path.join(at, "l%d%s" % (i, rng.choice([".png", "", ".png"])))
        target = rng.choice([
            lambda: os.path.relpath(rng.choice(list(entries)), at or "."),
            lambda: os.path.relpath(rng.choice(list(entries)), at or "."),
            lambda: os.path.relpath(rng.choice(directories) or ".", at or "."),
            lambda: os.path.relpath(rng.choice(list(entries)), at or ".") + "/",
            lambda: "./" + os.path.relpath(rng.choice(directories) or ".", at or ".") + "/../a",
            lambda: "../" * (at.count("/") + bool(at) + 1) + "outside-of-it/0.png",
            lambda: "/no/such/directory/0.png",
            lambda: rng.choice(["nowhere.png", os.path.basename(name), ""]) or "x/../" + os.path.basename(name)])()
        entries.setdefault(name, target)
    return entries


def links_on(root, path):
    """How many links the kernel follows on it; more than LINKS_MOST: at least so many."""
    rest, at, count = os.path.relpath(path, root).split("/"), root, 0
    while rest and count <= LINKS_MOST:
        name = rest.pop(0)
        here = os.path.dirname(at) if name == ".." else at if name in ("", ".") else os.path.join(at, name)
        if os.path.islink(here):
            count += 1
            rest = os.readlink(here).split("/") + rest
        else:
            at = here
    return count


def is_directory(entry):
    try:
        return entry.is_dir()
    except OSError:  # a loop: torchvision's find_classes fails
        return False


def as_torchvision(root):
    """classes, [(path, class)] of links that lead to a file, and how many links lead nowhere. None: no end."""
    top = list(os.scandir(root))
    classes = sorted(entry.name for entry in top if is_directory(entry))
    samples = []
    nowhere = sum(entry.is_symlink() and not os.path.exists(entry.path) for entry in top)
    for number, name in enumerate(classes):
        walk = list(itertools.islice(os.walk(os.path.join(root, name), followlinks=True), DIRECTORIES_MOST))
        if len(walk) == DIRECTORIES_MOST or any(links_on(root, os.path.join(folder, name)) > LINKS_MOST
                                                for folder, folders, names in walk for name in folders + names):
            return None
        for folder, _, names in sorted(walk):
            for path in (os.path.join(folder, name) for name in sorted(names)):
                nowhere += os.path.islink(path) and not os.path.exists(path)
                if os.path.isfile(path) and path.lower().endswith((".png", ".jpg")):
                    samples.append((os.path.relpath(path, root), number))
    return classes, samples, nowhere


class Links(unittest.TestCase):
    def folder(self, path, **options):
        """An ImageFolder and the texts of its warnings."""
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            folder = onepot.ImageFolder(path, loader=lambda file: file.read(), **options)
        return folder, [str(one.message) for one in told]

    def check_tree(self, root, path, expected):
        classes, samples, nowhere = expected
        folder, told = self.folder(path, allow_empty=True)
        self.assertEqual(folder.classes, classes)
        self.assertEqual(folder.samples, samples)
        self.assertEqual(folder.archive.passed_over, nowhere)
        self.assertEqual(len(told), bool(nowhere))
        for i, (name, label) in enumerate(samples):
            with open(os.path.join(root, name), "rb") as file:
                self.assertEqual(folder[i], (file.read(), label))
            self.assertEqual(folder.archive[name].name, name)

    def test_random_trees_are_as_torchvision_has_them(self):
        seeds, done, linked, torchs = itertools.count(), 0, 0, 0
        while done < TREES:
            rng = random.Random(next(seeds))
            root = os.path.join(WORK, "tree")
            plant(root, random_tree(rng))
            expected = as_torchvision(root)
            if expected and expected[0]:
                with self.subTest(tree=done):
                    path = packed(root, os.path.join(WORK, "tree.tar"), ("tar", "onepot")[done % 2])
                    self.check_tree(root, path, expected)
                    linked += any(os.path.realpath(os.path.join(root, name)) != os.path.join(root, name)
                                  for name, _ in expected[1])
                    torchs += self.check_torchvision(root, expected)
                done += 1
            shutil.rmtree(root)
        self.assertGreater(linked, TREES // 4)
        if torchvision:
            self.assertGreater(torchs, TREES // 2)

    def test_a_circle_ends_where_the_kernel_ends_it(self):
        root = os.path.join(WORK, "circle")
        plant(root, {"c/0.png": b"0", "c/self": "."})
        folder, told = self.folder(packed(root, root + ".tar", "tar"))
        self.assertEqual(folder.samples, sorted(("c/" + "self/" * i + "0.png", 0) for i in range(41)))
        self.assertEqual((folder.archive.passed_over, len(told)), (1, 1))

    def check_torchvision(self, root, expected):
        """Does torchvision agree? It takes links that lead nowhere for files, by their names."""
        if not torchvision:
            return False
        with_samples = {expected[0][label]: label for _, label in expected[1]}  # of others it complains
        try:
            classes = torchvision.datasets.folder.find_classes(root)[0]
        except OSError:  # a link to itself where classes are
            return False
        self.assertEqual(classes, expected[0])
        theirs = torchvision.datasets.folder.make_dataset(
            root, with_samples, extensions=torchvision.datasets.folder.IMG_EXTENSIONS) if with_samples else []
        self.assertEqual([(os.path.relpath(path, root), label) for path, label in theirs
                          if os.path.isfile(path)], expected[1])
        return True

    def test_a_class_that_is_a_link_has_its_number(self):
        root = os.path.join(WORK, "classes")
        plant(root, {"b/0.png": b"b0", "b/1.png": b"b1", "c/0.png": b"c0", "c/1.png": b"c1", "a": "c",
                     "b/linked.png": "../c/0.png"})
        folder, told = self.folder(packed(root, os.path.join(WORK, "classes.tar"), "onepot"))
        self.assertEqual((folder.classes, len(folder), folder.class_to_idx["b"], told), (["a", "b", "c"], 7, 1, []))
        self.assertEqual(folder.targets, [0, 0, 1, 1, 1, 2, 2])
        self.assertEqual([image for image, _ in folder], [b"c0", b"c1", b"b0", b"b1", b"c0", b"c0", b"c1"])

    def test_a_data_set_of_links_alone_is_one(self):
        root = os.path.join(WORK, "alone")
        plant(root, {"full/%d.png" % i: b"%d" % i for i in range(9)})
        plant(root, {"some/%d.png" % i: "../full/%d.png" % i for i in range(0, 9, 2)})
        path = packed(root, os.path.join(WORK, "alone.tar"), "tar")
        archive = onepot.Archive(path, root="some")
        self.assertEqual([bytes(sample) for sample in archive], [b"0", b"2", b"4", b"6", b"8"])
        self.assertEqual(list(archive.names)[1], "some/2.png")
        whole = onepot.Archive(path)
        self.assertEqual(whole.classes, ["full", "some"])
        self.assertNotEqual(archive._selection, onepot.Archive(path, root="full")[::2]._selection)
        batches = list(onepot.Loader(archive, 5, shuffle=False, rank=0, world_size=1, verify=True))
        self.assertEqual([bytes(data) for data in batches[0]], [b"0", b"2", b"4", b"6", b"8"])

    def test_links_that_lead_nowhere_are_told_once(self):
        root = os.path.join(WORK, "nowhere")
        plant(root, {"a/1.png": b"1", "a/2.png": "/data/full/2.png", "a/\x1b3.png": "../../x", "b/0": "0"})
        path = packed(root, os.path.join(WORK, "nowhere.tar"), "tar")
        with self.assertWarnsRegex(UserWarning, "nowhere.tar: .*no samples: 3; the first is 'a/.x1b3.png'") as told:
            archive = onepot.Archive(path)
        self.assertEqual((len(told.warnings), len(archive), archive.passed_over, archive[:0].passed_over), (1, 1, 3, 3))
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            self.assertEqual(pickle.loads(pickle.dumps(archive)).passed_over, 3)
        with self.assertWarns(UserWarning):
            self.assertEqual(len(onepot.Loader(path, 1, rank=0, world_size=1)), 1)

    def test_nothing_but_links_that_lead_nowhere_is_an_error(self):
        root = os.path.join(WORK, "subset")
        plant(root, {"k1/1.png": "/data/full/k1/1.png", "k2": "/data/full/k2"})
        path = packed(root, os.path.join(WORK, "subset.tar"), "tar")
        for open_it in (onepot.Archive, lambda path: onepot.Loader(path, 1, rank=0, world_size=1)):
            with self.assertRaisesRegex(FileNotFoundError, "no samples, but 1 directory, 2 symbolic links"):
                open_it(path)
        with self.assertWarns(UserWarning):
            archive = onepot.Archive(path, allow_empty=True)
        self.assertEqual((len(archive), archive.classes), (0, ["k1"]))
        self.assertEqual(len(onepot.Loader(archive, 1, rank=0, world_size=1)), 0)
        with self.assertRaisesRegex(FileNotFoundError, "classes k1.*nowhere: 2"), self.assertWarns(UserWarning):
            onepot.ImageFolder(path)


if __name__ == "__main__":
    unittest.main()
