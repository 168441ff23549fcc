/*
 * Files around an archive: a SIF, a script, a program. What is found lies in the file.
 */
#include <stdlib.h>
#include <string.h>

#include "bytes.h"
#include "container.h"
#include "fuzz.h"
#include "zip_helper.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct source *source = fuzz_source(data, size);
    struct container container = {0};
    struct fault fault = {0};
    if (container_find(source, &fault, &container) < 0)
        require(fault.err && fault.what[0]);
    else if (container.name)
        require(container.offset > 0 || container.length < size),
            require(container.offset <= size && container.length <= size - container.offset);
    source_close(source);
    return 0;
}

static void put_squashfs(uint8_t *at)
{
    memcpy(at, "hsqs", 4);
    bytes_put_le32(at + 12, 1u << 17);
    bytes_put_le16(at + 22, 17);
    bytes_put_le16(at + 28, 4);
}

static void put_sif(uint8_t *seed)
{
    uint8_t *descriptor = seed + 128;
    memcpy(seed, "#!/usr/bin/env run-singularity\n", 31);
    memcpy(seed + 32,
           "SIF_MAGIC\0"
           "01",
           12);
    bytes_put_le64(seed + 88, 2);
    bytes_put_le64(seed + 96, 128);
    for (uint32_t i = 0; i < 2; i++, descriptor += 585) {
        bytes_put_le32(descriptor, 0x4004);
        descriptor[4] = 1;
        bytes_put_le64(descriptor + 17, 1400);
        bytes_put_le64(descriptor + 25, 600);
        bytes_put_le32(descriptor + 201, 1);
        bytes_put_le32(descriptor + 205, i + 2);
    }
    put_squashfs(seed + 1400);
}

static void put_program(uint8_t *seed)
{
    memcpy(seed, "\177ELF\2\1\1", 7);
    bytes_put_le64(seed + 40, 1000);
    bytes_put_le16(seed + 58, 64);
    bytes_put_le16(seed + 60, 3);
    bytes_put_le64(seed + 1000 + 128 + 24, 900); /* the last section, before the table */
    bytes_put_le64(seed + 1000 + 128 + 32, 50);
    put_squashfs(seed + 1000 + 192);
}

/* A zip behind a script; behind a program; the same, with offsets in the whole file. */
static void put_zip_behind(uint8_t *seed, unsigned kind, size_t *ret_size)
{
    static const char *const fronts[] = {"#!/bin/sh\nexit\n", "\177ELF", "MZ, a program"};
    size_t at = strlen(fronts[kind]);
    struct zip_member members[] = {{.name = "one", .data = "1"}, {.name = "two", .data = "22"}};
    memcpy(seed, fronts[kind], at);
    *ret_size = at + zip_put(seed + at, members, 2, kind == 2 ? (uint32_t)at : 0);
}

uint8_t *fuzz_seed(unsigned number, size_t *ret_size)
{
    static const char script[] = "#!/bin/sh\nexit\n\n";
    static const char payloads[][16] = {"\x1f\x8b\x08\0\0\0\0\0\0\3", "BZh91AY&SY\x80\0\0\1",
                                        "\3757zXZ\0\0\4", "hsqs\0\0\0\0\0\0"};
    size_t tar_size = 0, room = 2000, at = strlen(script);
    uint8_t *tar = number == 2 ? fuzz_make_tar("ustar", &tar_size) : NULL;
    uint8_t *seed = number < 10 ? calloc(1, room + tar_size) : NULL;
    *ret_size = room + tar_size;
    if (number == 0)
        put_sif(seed);
    else if (number == 1)
        put_program(seed);
    else if (number >= 7 && seed)
        put_zip_behind(seed, number - 7, ret_size);
    else if (seed)
        memcpy(seed, script, at);
    if (number == 2)
        memcpy(seed + at + 7, tar, tar_size);
    else if (number >= 3 && number < 7)
        memcpy(seed + at, payloads[number - 3], 10);
    if (number == 6)
        put_squashfs(seed + at);
    free(tar);
    return seed;
}
