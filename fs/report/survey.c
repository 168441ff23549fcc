/*
 * Sizes are counted by powers of two. That needs the same memory for any number of files, and
 * answers a person's questions: are they small? is one of them huge?
 */
#include "survey.h"

#include <sys/stat.h>

unsigned survey_class(uint64_t bytes)
{
    return bytes ? 64u - (unsigned)__builtin_clzll(bytes) : 0;
}

static void count_file(struct survey *s, uint64_t bytes)
{
    unsigned i = survey_class(bytes);
    if (s->files == 0 || bytes < s->smallest_bytes)
        s->smallest_bytes = bytes;
    if (bytes > s->largest_bytes)
        s->largest_bytes = bytes;
    s->files++;
    s->size_files[i]++;
    s->size_bytes[i] += bytes;
}

static void count_entry(struct survey *s, uint32_t position, const struct node *node)
{
    if (node->position != position)
        s->hardlinks++;
    else if (S_ISREG(node->mode))
        count_file(s, node->size_bytes);
    else if (S_ISDIR(node->mode))
        s->directories++;
    else if (S_ISLNK(node->mode))
        s->symlinks++;
    else
        s->specials++;
}

int survey_index(const struct index *index, struct survey *ret_survey)
{
    struct survey s = {0};
    uint32_t entries = index_info(index)->entries;
    for (uint32_t i = 0; i < entries; i++) {
        struct node node;
        int r = index_node(index, i, &node);
        if (r < 0)
            return r;
        count_entry(&s, i, &node);
    }
    *ret_survey = s;
    return 0;
}
