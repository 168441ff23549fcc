"""A made-up ImageNet, as the real one ships: examples/imagenet.sbatch shows it to torchvision."""

import io
import os
import pathlib
import random
import sys
import tarfile

import harness
from harness import check_equal, run

CLASSES = ["n01440764", "n01443537", "n01484850", "n01491361", "n01494475", "n01496331"]
SCRIPT = pathlib.Path(__file__).resolve().parents[3] / "examples" / "imagenet.sbatch"

TRAINER = """
import json, sys
from torchvision.datasets import ImageFolder
out = []
for folder in sys.argv[-2:]:
    data = ImageFolder(folder)
    colours = [image.getpixel((0, 0))[0] for image, label in data]
    out.append([data.classes, data.targets, colours])
json.dump(out, open(sys.argv[1], "w"))
"""


def jpeg(number):
    """An image whose colour tells its class."""
    from PIL import Image
    out = io.BytesIO()
    Image.new("RGB", (16, 12), (number * 40, 0, 0)).save(out, "JPEG", quality=95)
    return out.getvalue()


def add(archive, name, data):
    info = tarfile.TarInfo(name)
    info.size = len(data)
    archive.addfile(info, io.BytesIO(data))


def make_imagenet(folder, rng):
    """Returns the classes of the validation, by image."""
    with tarfile.open(folder / "ILSVRC2012_img_train.tar", "w") as train:
        for number, name in enumerate(CLASSES):
            inner = io.BytesIO()
            with tarfile.open(fileobj=inner, mode="w") as t:
                for i in range(number + 3):
                    add(t, f"{name}_{i * 7}.JPEG", jpeg(number))
            add(train, name + ".tar", inner.getvalue())
    labels = [rng.randrange(len(CLASSES)) for _ in range(50)] + list(range(len(CLASSES)))
    with tarfile.open(folder / "ILSVRC2012_img_val.tar", "w") as val:
        for i, label in enumerate(labels):
            add(val, f"ILSVRC2012_val_{i + 1:08}.JPEG", jpeg(label))
    (folder / "synset_words.txt").write_text(
        "".join(f"{name} a word, another\n" for name in CLASSES))
    return labels


def check_script(work, folder, labels):
    import json
    bin_folder = pathlib.Path(work / "bin")
    bin_folder.mkdir(exist_ok=True)
    if not (bin_folder / "onepot").exists():
        (bin_folder / "onepot").symlink_to(harness.onepot_program())
    env = harness.environment(PATH=f"{bin_folder}:{os.environ['PATH']}")
    run("bash", SCRIPT, folder, sys.executable, "-c", TRAINER, work / "seen.json", env=env)
    train, val = json.loads(pathlib.Path(work / "seen.json").read_text())
    for (classes, targets, colours), expected in (
            (train, [n for n in range(len(CLASSES)) for _ in range(n + 3)]), (val, sorted(labels))):
        check_equal(classes, CLASSES, "classes")
        check_equal(targets, expected, "targets")
        check_equal([round(c / 40) for c in colours], expected, "each image is of its class")
    check_equal(harness.mountpoints(work.path), [], "mounts that are left")


def test_the_script_shows_what_image_folder_expects(work):
    try:
        import torchvision  # noqa: F401
    except ImportError as error:
        raise harness.Skip("there is no torchvision") from error
    folder = pathlib.Path(work.make("imagenet"))
    labels = make_imagenet(folder, random.Random(1))
    (folder / "val.txt").write_text("".join(
        f"ILSVRC2012_val_{i + 1:08}.JPEG {label}\n" for i, label in enumerate(labels)))
    check_script(work, folder, labels)
    (folder / "val.txt").write_text("".join(f"{label + 1}\n" for label in labels))
    check_script(work, folder, labels)


if __name__ == "__main__":
    harness.main(globals(), in_memory=True)
