"""What a mount takes of its node: memory shared with other mounts, entries of the kernel, CPUs."""

import os
import subprocess

import harness
import tree
from tars import member, write_tar
from harness import Counter, Skip, check, check_equal, wait_for

FILES = 3000


def make_listing(work):
    archive = work / "many.tar"
    write_tar(archive, [member("a", directory=True), member("a/b", directory=True),
                        member("a/c", directory=True)] +
              [member(f"a/{folder}/{i:05d}", b"x") for folder in "bc" for i in range(FILES)])
    return archive


def stat_all(folder):
    fd = os.open(folder, os.O_RDONLY)
    for entry in list(os.scandir(folder)):
        os.stat(entry.name, dir_fd=fd)
    os.close(fd)


def test_listing_makes_entries_for_an_eighth_of_the_budget(work):
    archive = make_listing(work)
    with work.mount(archive, "--cache", "8M") as mount:
        counter = Counter(mount)
        stat_all(mount / "a/b")
        asked = counter.asked()
        told = FILES - asked.get("LOOKUP", 0)
        room = (8 << 20) // 8 // 1100
        # An answer that was begun is not cut short.
        check(room <= told <= room + 600, f"{told} of {FILES} entries came with the listing")
        check_equal(len(os.listdir(mount / "a/b")), FILES, "names")


def test_entries_count_once_however_often_they_are_listed(work):
    archive = make_listing(work)
    with work.mount(archive, "--cache", "64M") as mount:
        for _ in range(10):
            stat_all(mount / "a/b")
        counter = Counter(mount)
        stat_all(mount / "a/c")
        # But what is on the way to it: the root's entries are valid for a moment only.
        check(counter.asked().get("LOOKUP", 0) < 5, "the next folder is told as well")


def budget(mount):
    return mount.stat()["cache"]["budget_bytes"]


def test_mounts_of_a_job_share_what_it_has(work):
    one, two = work / "one.tar", work / "two.tar"
    for path in (one, two):
        write_tar(path, [member("f", tree.content(5000, 1))])
    env = harness.environment(SLURM_JOB_ID="77")
    with work.mount(one, env=env, name="m1") as first:
        alone = budget(first)
        with work.mount(two, env=env, name="m2") as second:
            def fair():
                # The one that grows first: the other has shrunk before, but may after our look.
                sum_now = budget(second) + budget(first)
                check(sum_now <= alone * 11 // 10 + (8 << 20), f"{sum_now} of {alone}")
                return min(budget(first), budget(second)) >= alone * 2 // 5
            wait_for(fair, "fair parts")
            with work.mount(two, "--cache", "32M", env=env, name="m3") as third:
                check_equal(budget(third), 32 << 20, "what was asked for")
        wait_for(lambda: budget(first) >= alone * 9 // 10, "all of it again")


def test_mounts_of_other_jobs_do_not_count(work):
    archive = work / "one.tar"
    write_tar(archive, [member("f", b"x")])
    with work.mount(archive, env=harness.environment(SLURM_JOB_ID="77"), name="m1") as first:
        before = budget(first)
        with work.mount(archive, env=harness.environment(SLURM_JOB_ID="78"), name="m2") as other:
            check(budget(other) > before // 2, "another job has its own")


def test_daemon_of_a_bound_task_uses_the_cpus_of_the_job(work):
    cpus = sorted(os.sched_getaffinity(0))
    if len(cpus) < 2 or len(cpus) != os.cpu_count():
        raise Skip("all CPUs of the node are needed, and more than one")
    harness.need_program("taskset")
    archive = work / "one.tar"
    write_tar(archive, [member("f", b"x")])
    bound = ("taskset", "-c", str(cpus[0]))

    def threads(where, *options, before=bound, **variables):
        env = harness.environment(**variables)
        subprocess.run([*before, harness.onepot_program(), "mount", *options, archive, "--at", where],
                       env=env, check=True, stdout=subprocess.DEVNULL)
        try:
            return harness.json.loads(harness.onepot("stat", "--json", where, env=env).stdout)
        finally:
            harness.onepot("umount", where, env=env)

    where = work.make("here")
    if threads(where, before=())["threads"] < 2:
        raise Skip("a control group has less than two CPUs for us")
    wide = threads(where, SLURM_CPUS_ON_NODE=str(len(cpus)))["threads"]
    check(wide > 1, "the job has the node: more than one CPU")
    narrow = threads(where, "--threads", "1", SLURM_CPUS_ON_NODE=str(len(cpus)))["threads"]
    check_equal(narrow, 1, "--threads")


if __name__ == "__main__":
    harness.main(globals())
