/*
 * The parser of --map: what it accepts are names that the builder accepts, or refuses for their
 * length alone.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "builder.h"
#include "fuzz.h"
#include "tree_view_private.h"

static void check_name(const struct view *view, size_t offset)
{
    struct builder *b;
    uint32_t inode;
    require(offset < view->text.count &&
            memchr(view->text.at + offset, '\0', view->text.count - offset));
    const char *name = view->text.at + offset;
    require(builder_new(&b) == 0);
    int r = builder_add(b, name, strlen(name), &(struct node){.mode = 0100644}, NULL, &inode);
    require(name[0] && name[0] != '/' && name[strlen(name) - 1] != '/');
    require(r == 0 || r == -ENAMETOOLONG);
    builder_free(b);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct view *view = calloc(1, sizeof(*view));
    struct fault fault = {0};
    require(view != NULL);
    require(vector_append(&view->text, (const char *)data, size) == 0);
    require(vector_push(&view->text, '\n') == 0);
    int r = view_parse_map(view, &fault);
    require(r == 0 || (r == -EINVAL && fault.what[0] && fault.advice[0]));
    for (size_t i = 0; r == 0 && i < view->lines.count; i++) {
        check_name(view, view->lines.at[i].from);
        check_name(view, view->lines.at[i].to);
    }
    view_free(view);
    return 0;
}

uint8_t *fuzz_seed(unsigned number, size_t *ret_size)
{
    /* "!" stands for a zero byte. */
    static const char *const seeds[] = {"a\tb\nc/d\te/f\n", "\n\na\\tb\\n\\\\\t./x//y/\n",
                                        "d/\t/e\n#\t#\n",   "a/b/c\t.\n",
                                        "\xff\t\xfe\n",     "a\tb!c\n",
                                        "..\tx\n",          "a b\n",
                                        "a\tb\tc\n",        "x\\q\ty\n"};
    if (number >= sizeof(seeds) / sizeof(seeds[0]))
        return NULL;
    char *seed = strdup(seeds[number]);
    *ret_size = strlen(seed);
    for (char *zero = seed; (zero = strchr(zero, '!'));)
        *zero++ = '\0';
    return (uint8_t *)seed;
}
