"""onepot doctor: what it says of a node, of archives and of mounts."""

import json
import os
import resource
import shutil
import signal

import harness
from tars import member, write_tar
from harness import Skip, check, check_equal, onepot, wait_for


def doctor(*arguments, status=0, **options):
    done = onepot("doctor", "--json", *arguments, status=status, **options)
    said = json.loads(done.stdout)
    check(said["mount_works"] or status != 0, "a mount does not work, and nothing is wrong")
    return said["findings"]


def of(findings, section, subject=None):
    return [f for f in findings if f["section"] == section and subject in (None, f["subject"])]


def make_one_file(work, name="one.tar"):
    archive = work / name
    write_tar(archive, [member("f", b"hello")])
    return archive


def test_a_node_that_can_mount_is_well(work):
    findings = doctor()
    (trial,) = of(findings, "mounting", "trial")
    check_equal(trial["kind"], "good", "the trial")
    for section in ("memory", "CPUs", "places"):
        check(of(findings, section), section)
    text = onepot("doctor").stdout.decode()
    check("trial: mount, read, compare, unmount: works" in text, text)
    check_equal(harness.mountpoints(work.path), [], "mounts that are left")


def test_where_no_mount_is_possible_it_says_why(work):
    env = harness.environment(ONEPOT_MOUNT_METHODS="namespace")
    findings = doctor(status=1, env=env)
    (trial,) = of(findings, "mounting", "trial")
    check_equal(trial["kind"], "wrong", "the trial")
    check("--extract" in trial["advice"], f"the advice: {trial['advice']}")
    (files,) = of(findings, "mounting", "plain files")
    check_equal(files["kind"], "good", "plain files in place of a mount")
    check(trial["advice"], "what to do")
    check(b"!! trial" in onepot("doctor", status=1, env=env).stdout, "the same as text")


def test_an_archive_is_looked_at(work):
    archive = make_one_file(work)
    findings = of(doctor(archive), "archive")
    check_equal(findings[0]["text"], "tar", "its format")
    (index,) = [f for f in findings if f["subject"] == "index"]
    check("made for the first mount" in index["text"], index["text"])
    onepot("index", archive)
    (index,) = of(doctor(archive), "archive", "index")
    check("saved in" in index["text"], index["text"])
    os.utime(archive, (1, 1))
    (index,) = of(doctor(archive), "archive", "index")
    check("none that fits" in index["text"], index["text"])
    remote = of(doctor(archive, env=harness.environment(ONEPOT_ASSUME_REMOTE="1")), "archive",
                "filesystem")
    check("not on this node" in remote[0]["text"], remote[0]["text"])
    source = work.make("source")
    with open(os.path.join(source, "f"), "w", encoding="ascii") as f:
        f.write("hello")
    onepot("pack", "-o", work / "own.onepot", source)
    (index,) = of(doctor(work / "own.onepot"), "archive", "index")
    check_equal(index["text"], "in the archive", "of an onepot archive")


def test_nodes_of_a_job_are_told_to_copy_together(work):
    archive = make_one_file(work)
    env = harness.environment(ONEPOT_ASSUME_REMOTE="1", SLURM_JOB_NUM_NODES="4")
    nodes, way = of(doctor(archive, env=env), "job")
    check_equal(nodes["text"], "4, by SLURM_JOB_NUM_NODES", "the nodes")
    check("together to /dev/shm" in way["text"] and "onepot-mpi" in way["advice"], f"{way}")
    check_equal(of(doctor(archive), "job"), [], "of one node")


def test_an_index_that_could_not_lie_beside_the_archive_is_found(work):
    folder = work.make("closed")
    archive = os.path.join(folder, "one.tar")
    write_tar(archive, [member("f", b"hello")])
    cache = work.make("cached")
    env = harness.environment(XDG_CACHE_HOME=cache)
    os.mkdir(archive + ".onepot-index")  # even root can't write a file there
    onepot("index", archive, env=env, status=None)
    check(os.listdir(cache), "no index was saved in the cache")
    os.rmdir(archive + ".onepot-index")
    (index,) = of(doctor(archive, env=env), "archive", "index")
    check_equal((index["kind"], cache in index["text"]), ("good", True), f"{index}")


def test_copies_are_named(work):
    archive = make_one_file(work)
    (none,) = of(doctor(), "copies")
    check("none" in none["text"], none["text"])
    onepot("stage", archive)
    (copy,) = of(doctor(), "copies")
    check("kept for later" in copy["text"] and "unstage" in copy["advice"], f"{copy}")
    with work.mount("--stage", archive):
        (copy,) = of(doctor(), "copies")
        check("in use" in copy["text"], f"{copy}")
    onepot("unstage", archive)


def test_limits_of_the_process_are_told(work):
    archive = make_one_file(work)

    def limited(kind, value):
        return of(doctor(archive, status=None, preexec_fn=lambda: resource.setrlimit(kind, (value, value))),
                  "limits")

    (files,) = [f for f in limited(resource.RLIMIT_NOFILE, 100) if f["subject"] == "open files"]
    check_equal((files["kind"], "ulimit -n" in files["advice"]), ("warning", True), f"{files}")
    (size,) = [f for f in limited(resource.RLIMIT_FSIZE, 4096) if f["subject"] == "size of files"]
    check_equal((size["kind"], "--stage" in size["text"]), ("warning", True), f"{size}")


def test_what_is_no_archive_is_wrong(work):
    findings = doctor(work / "missing.tar", status=1)
    (found,) = of(findings, "archive")
    check_equal((found["kind"], found["text"]), ("wrong", "no such file"), "a missing file")
    said = json.loads(onepot("doctor", "--json", work / "missing.tar", status=1).stdout)
    check_equal(said["mount_works"], json.loads(onepot("doctor", "--json").stdout)["mount_works"],
                "what an archive says of mounts")
    with open(work / "noise", "wb") as f:
        f.write(os.urandom(100_000))
    (found,) = of(doctor(work / "noise", status=1), "archive")
    check_equal(found["kind"], "wrong", "noise")


def test_it_says_whether_reading_renews_the_access_time(work):
    old = 1_000_000_000
    for option, said in ("strictatime", "renews its access time"), ("relatime", "renews its access time"), \
                        ("noatime", "renews none of its times"):
        with work.kernel_mount("tmpfs", "none", option, "-o", option):
            archive = make_one_file(work, f"{option}/one.tar")
            (age,) = of(doctor(archive), "archive", "age")
            check(said in age["text"], f"{option}: {age}")
            os.utime(archive, (old, old))
            with work.mount(archive) as mount:
                with open(mount / "f", "rb") as f:
                    check_equal(f.read(), b"hello", "the file")
            status = os.stat(archive)
            check_equal((status.st_atime > old, status.st_mtime), (option != "noatime", old), f"times with {option}")


def test_a_mount_is_asked_and_a_dead_one_is_named(work):
    archive = make_one_file(work)
    with work.mount(archive) as mount:
        (found,) = of(doctor(mount.path), "mount")
        check_equal(found["kind"], "good", "a mount that answers")
        pid = mount.stat()["daemon_pid"]
        os.kill(pid, signal.SIGKILL)
        wait_for(lambda: mount.stat()["state"] == "dead", "the daemon's end")
        (found,) = of(doctor(mount.path, status=1), "mount")
        check_equal(found["kind"], "wrong", "a dead mount")
        check("onepot umount" in found["advice"], found["advice"])
        (found,) = of(doctor(), "mounts")
        check_equal((found["kind"], found["subject"]), ("warning", mount.path), "what is left")
        mount.end()
        (found,) = of(doctor(), "mounts")
        check_equal(found["kind"], "good", "nothing is left")


def test_another_project_of_the_same_name_is_named(work):
    python = shutil.which("python3")
    if not python:
        raise Skip("no python3 on the PATH")
    if onepot("help", "convert", status=None).returncode != 0:
        raise Skip("this onepot was built without the Python module")
    package = os.path.join(work / "site", "onepot")
    os.makedirs(package)
    os.makedirs(work / "importlib")
    for trap in (os.path.join(package, "__init__.py"), os.path.join(work / "importlib", "__init__.py")):
        with open(trap, "w", encoding="ascii") as f:
            f.write(f"open('{work / 'was_run'}', 'w')\n")
    environment = dict(os.environ, PYTHONPATH=work / "site")
    (found,) = of(doctor(env=environment, cwd=work.path), "Python")
    check_equal(found["kind"], "warning", "a stranger's package")
    check(package in found["text"] and "onepot-fs" in found["advice"], found)
    check(not os.path.exists(work / "was_run"), "doctor ran code of the package or of the current directory")
    with open(os.path.join(package, "__init__.py"), "w", encoding="ascii") as f:
        f.write("from onepot._core import __version__\n")
    (found,) = of(doctor(env=environment), "Python")
    check_equal(found["kind"], "good", "our package")


def test_wrong_use_is_refused(_work):
    onepot("doctor", "a", "b", status=2)
    onepot("doctor", "--nonsense", status=2)


if __name__ == "__main__":
    harness.main(globals())
