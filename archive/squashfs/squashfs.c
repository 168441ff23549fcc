/*
 * SquashFS 4.0, read with libsquashfuse. This walks the directories and passes to the builder
 * each entry and the places of its blocks. The library decompresses metadata and decodes
 * inodes; data blocks are never read here.
 *
 * The library trusts its input. It runs in the sandbox, where it may crash. Still, everything
 * that can be checked before a call is: cursors into metadata, numbers in tables, and the
 * length of a name, which the library would copy into a buffer unchecked. So the library skips
 * names, and they are read here. Directories are walked here, too, each at most once, so that
 * an image can't make the walk longer than itself.
 *
 * A file whose blocks are all stored becomes a range of the archive (or a few, around its
 * holes), like a member of a tar. Only files with compressed blocks need the block cache for
 * reads.
 */
#include "backend.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* libsquashfuse's config.h defines its own VERSION and _POSIX_C_SOURCE. */
#undef _POSIX_C_SOURCE
#include <squashfuse/squashfuse.h>

#include "bytes.h"
#include "map.h"
#include "path.h"
#include "vector.h"

#define SUPER_BYTES 96u
#define METADATA_BYTES 8192u
#define XATTRS_MAX 16384u      /* a list of names is at most 64 KiB on Linux */
#define XATTR_VALUE_MAX 65536u /* XATTR_SIZE_MAX of Linux */

/* The fields of the superblock that matter here. */
struct super {
    uint32_t block_bytes, fragments;
    uint16_t compression, block_log, id_count, major, minor;
    uint64_t bytes_used;
    uint64_t inode_table, directory_table;
};

/* A directory that is being listed. */
struct level {
    sqfs_dir dir;
    uint64_t inode_offset; /* of its inode, for messages */
    uint32_t inode;        /* its number in the builder */
    size_t path_len;       /* of its path */
};

struct walk {
    struct source *source;
    struct builder *builder;
    struct progress *progress;
    struct fault *fault;
    struct super super;
    sqfs fs;
    uint32_t *ids;                       /* the table of user and group numbers */
    struct builder_piece *fragments;     /* the fragment table */
    struct map links;                    /* inodes with several names */
    struct map directories;              /* directories that were entered */
    uint64_t entries_left, blocks_left;  /* upper limits from the size of the image */
    bool is_open;                        /* fs must be destroyed */
    bool has_packed;                     /* some block is compressed */
    VECTOR(struct builder_piece) pieces; /* of a file */

    VECTOR(struct level) levels;   /* a stack */
    char path[INDEX_PATH_MAX + 2]; /* of the current entry, terminated */
    size_t path_len;
    uint8_t value[XATTR_VALUE_MAX];
};

/* The superblock. */

static void squashfs_decode_super(const uint8_t bytes[SUPER_BYTES], struct super *super)
{
    *super = (struct super){
        .block_bytes = bytes_le32(bytes + 12),
        .fragments = bytes_le32(bytes + 16),
        .compression = bytes_le16(bytes + 20),
        .block_log = bytes_le16(bytes + 22),
        .id_count = bytes_le16(bytes + 26),
        .major = bytes_le16(bytes + 28),
        .minor = bytes_le16(bytes + 30),
        .bytes_used = bytes_le64(bytes + 40),
        .inode_table = bytes_le64(bytes + 64),
        .directory_table = bytes_le64(bytes + 72),
    };
}

static int squashfs_probe(const struct source *source, const uint8_t *head, size_t head_len)
{
    (void)source;
    if (head_len < SUPER_BYTES || memcmp(head, "hsqs", 4) != 0)
        return 0;
    struct super super;
    squashfs_decode_super(head, &super);
    return super.major == 4 && super.minor == 0;
}

static bool squashfs_is_whole(const struct source *source, bool by_end)
{
    (void)by_end;
    uint8_t bytes[SUPER_BYTES];
    struct super super;
    if (source_size(source) < sizeof(bytes) || source_read(source, bytes, sizeof(bytes), 0) < 0)
        return false;
    squashfs_decode_super(bytes, &super);
    return super.bytes_used <= source_size(source);
}

static int squashfs_find_behind(const struct front *front, uint64_t *ret_offset)
{
    struct front place;
    struct super super;
    for (size_t cursor = 0; front_next(front, &cursor, &place);) {
        if (squashfs_probe(front->source, place.bytes, place.len) != 1)
            continue;
        squashfs_decode_super(place.bytes, &super);
        if (super.block_log > 20 || super.block_bytes != 1u << super.block_log)
            continue;
        *ret_offset = place.offset;
        return 1;
    }
    return 0;
}

static int squashfs_check_super(struct walk *w)
{
    const struct super *super = &w->super;
    if (super->block_log < 12 || super->block_log > 20 ||
        super->block_bytes != 1u << super->block_log)
        return fault_set(w->fault, -EUCLEAN, NULL, 12, "blocks of %u bytes are impossible",
                         super->block_bytes);
    if (super->bytes_used > source_size(w->source))
        return fault_set_advised(w->fault, -EUCLEAN, NULL, source_size(w->source),
                                 "copy it again", "is cut off: %llu of %llu bytes are there",
                                 (unsigned long long)source_size(w->source),
                                 (unsigned long long)super->bytes_used);
    if (super->inode_table < SUPER_BYTES || super->inode_table >= super->directory_table ||
        super->directory_table > super->bytes_used || super->id_count == 0)
        return fault_set(w->fault, -EUCLEAN, NULL, 64, "the superblock is damaged");
    if (!sqfs_decompressor_get(super->compression) || super->compression == CODEC_LZMA)
        return fault_set(w->fault, -ENOTSUP, NULL, 20, "compression method %u is not supported",
                         super->compression);
    return 0;
}

/*
 * The most bytes that `bytes` of metadata can decompress to: each metadata block takes a header
 * of two bytes and at least one more.
 */
static uint64_t squashfs_metadata_room(uint64_t bytes)
{
    return (bytes / 3 + 1) * METADATA_BYTES;
}

static int squashfs_read_super(struct walk *w)
{
    uint8_t bytes[SUPER_BYTES];
    int r = source_read(w->source, bytes, sizeof(bytes), 0);
    if (r < 0)
        return fault_set(w->fault, r, NULL, 0, "the superblock can't be read");
    squashfs_decode_super(bytes, &w->super);
    r = squashfs_check_super(w);
    if (r < 0)
        return r;
    const struct super *super = &w->super;
    w->entries_left = squashfs_metadata_room(super->bytes_used - super->directory_table) / 9;
    w->blocks_left = squashfs_metadata_room(super->directory_table - super->inode_table) / 4;
    return 0;
}

/* Metadata. */

/* Does this cursor point into a metadata block, not behind its end? */
static bool squashfs_cursor_valid(struct walk *w, const sqfs_md_cursor *cursor)
{
    sqfs_off_t pos = cursor->block;
    sqfs_block *block;
    return pos > 0 && (uint64_t)pos < w->super.bytes_used && cursor->offset < METADATA_BYTES &&
           sqfs_md_cache(&w->fs, &pos, &block) == SQFS_OK && cursor->offset < block->size;
}

/* Are all entries of the table present? */
static bool squashfs_table_valid(struct walk *w, const sqfs_table *table, uint64_t count)
{
    uint64_t bytes = count * table->each;
    for (uint64_t i = 0; i * METADATA_BYTES < bytes; i++) {
        uint64_t here = bytes - i * METADATA_BYTES;
        here = here < METADATA_BYTES ? here : METADATA_BYTES;
        sqfs_md_cursor last = {(sqfs_off_t)table->blocks[i], (size_t)here - 1};
        if (!squashfs_cursor_valid(w, &last))
            return false;
    }
    return true;
}

static int squashfs_table_fault(struct walk *w, const char *what)
{
    return fault_set(w->fault, -EUCLEAN, NULL, FAULT_NO_OFFSET, "the table of %s is damaged",
                     what);
}

/* Loads all user and group numbers: they are few, and each inode needs them. */
static int squashfs_load_ids(struct walk *w)
{
    uint32_t count = w->super.id_count;
    if (!squashfs_table_valid(w, &w->fs.id_table, count))
        return squashfs_table_fault(w, "owners");
    w->ids = calloc(count, sizeof(*w->ids));
    if (!w->ids)
        return -ENOMEM;
    for (uint32_t i = 0; i < count; i++) {
        sqfs_id_t id;
        if (sqfs_id_get(&w->fs, (uint16_t)i, &id))
            return squashfs_table_fault(w, "owners");
        w->ids[i] = id;
    }
    return 0;
}

/*
 * Checks a block's place and size on disk, and fills in where its `bytes` bytes are: stored
 * there, or in a block of the builder. `size_word` includes the stored bit. Length 0: a hole.
 */
static int squashfs_find_block(struct walk *w, uint64_t source_offset, uint32_t size_word,
                               uint32_t bytes, struct builder_piece *ret_piece)
{
    bool packed;
    uint32_t size, number = BUILDER_NO_BLOCK;
    sqfs_data_header(size_word, &packed, &size);
    if (size > w->super.block_bytes || (!packed && size > 0 && size < bytes) ||
        source_offset > w->super.bytes_used || size > w->super.bytes_used - source_offset ||
        (size > 0 && source_offset < SUPER_BYTES))
        return fault_set(w->fault, -EUCLEAN, w->path, source_offset,
                         "a block of %u bytes is impossible there", size);
    if (packed && size > 0) {
        const struct builder_block block = {
            .source_offset = source_offset, .packed_bytes = size, .block_bytes = bytes};
        int r = builder_add_block(w->builder, &block, &number);
        if (r < 0)
            return fault_set(w->fault, r, w->path, source_offset,
                             "a block of %u bytes is impossible there", size);
        w->has_packed = true;
    }
    *ret_piece = (struct builder_piece){
        .length = size ? bytes : 0, .source_offset = source_offset, .block = number};
    return 0;
}

static int squashfs_load_fragments(struct walk *w)
{
    uint32_t count = w->super.fragments;
    if (count == 0)
        return 0;
    if (!squashfs_table_valid(w, &w->fs.frag_table, count))
        return squashfs_table_fault(w, "fragments");
    w->fragments = calloc(count, sizeof(*w->fragments));
    if (!w->fragments)
        return -ENOMEM;
    for (uint32_t i = 0; i < count; i++) {
        struct squashfs_fragment_entry entry;
        bool packed;
        uint32_t size;
        if (sqfs_frag_entry(&w->fs, &entry, i))
            return squashfs_table_fault(w, "fragments");
        sqfs_data_header(entry.size, &packed, &size);
        if (size == 0)
            return fault_set(w->fault, -EUCLEAN, NULL, entry.start_block,
                             "a fragment is empty");
        /* A stored fragment has any size; a compressed one holds at most a block. */
        int r = squashfs_find_block(w, entry.start_block, entry.size,
                                    packed ? w->super.block_bytes : size, &w->fragments[i]);
        if (r < 0)
            return r;
    }
    return 0;
}

static int squashfs_open_image(struct walk *w)
{
    if (source_fd(w->source) < 0) /* squashfuse reads one file */
        return fault_set_advised(w->fault, -ENOTSUP, NULL, FAULT_NO_OFFSET,
                                 "join them first, with cat", "is a SquashFS image in parts");
    if (sqfs_init(&w->fs, source_fd(w->source), (size_t)source_start(w->source)))
        return fault_set(w->fault, -EUCLEAN, NULL, FAULT_NO_OFFSET,
                         "the tables at its end are damaged");
    w->is_open = true;
    if (w->fs.xattr_info.xattr_ids > 0 &&
        !squashfs_table_valid(w, &w->fs.xattr_table, w->fs.xattr_info.xattr_ids))
        return squashfs_table_fault(w, "extended attributes");
    int r = squashfs_load_ids(w);
    return r < 0 ? r : squashfs_load_fragments(w);
}

/* Data of a file. */

/* Reads the list of a file's blocks, without its tail, into w->pieces. */
static int squashfs_read_blocks(struct walk *w, sqfs_inode *inode)
{
    uint64_t size = inode->xtra.reg.file_size, at = 0;
    sqfs_blocklist list;
    sqfs_blocklist_init(&w->fs, inode, &list);
    w->pieces.count = 0;
    if (list.remain > w->blocks_left || list.remain >= UINT32_MAX)
        return fault_set(w->fault, -EUCLEAN, w->path, FAULT_NO_OFFSET,
                         "size %llu is more than its list of blocks can describe",
                         (unsigned long long)size);
    w->blocks_left -= list.remain;
    while (list.remain > 0) {
        if (sqfs_blocklist_next(&list))
            return fault_set(w->fault, -EUCLEAN, w->path, FAULT_NO_OFFSET,
                             "its list of blocks is damaged");
        uint32_t bytes = w->super.block_bytes;
        bytes = size - at < bytes ? (uint32_t)(size - at) : bytes;
        struct builder_piece piece;
        int r = squashfs_find_block(w, list.block, list.header, bytes, &piece);
        if (r < 0)
            return r;
        piece.offset = at;
        if (piece.length > 0 && vector_push(&w->pieces, piece) < 0)
            return -ENOMEM;
        at += bytes;
    }
    return 0;
}

/* Finds the rest of a file behind its blocks, which is in a fragment, if there is one. */
static int squashfs_find_tail(struct walk *w, const sqfs_inode *inode)
{
    uint32_t number = inode->xtra.reg.frag_idx, offset = inode->xtra.reg.frag_off;
    uint32_t bytes = (uint32_t)(inode->xtra.reg.file_size % w->super.block_bytes);
    if (number == SQUASHFS_INVALID_FRAG)
        return 0;
    if (number >= w->super.fragments)
        return fault_set(w->fault, -EUCLEAN, w->path, FAULT_NO_OFFSET,
                         "lies in fragment %u of %u", number, w->super.fragments);
    struct builder_piece piece = w->fragments[number];
    if (offset > piece.length || bytes > piece.length - offset)
        return fault_set(w->fault, -EUCLEAN, w->path, piece.source_offset,
                         "lies past the end of its fragment");
    piece.offset = inode->xtra.reg.file_size - bytes;
    piece.length = bytes;
    if (piece.block == BUILDER_NO_BLOCK)
        piece.source_offset += offset;
    else
        piece.block_offset = offset;
    return bytes > 0 ? vector_push(&w->pieces, piece) : 0;
}

static int squashfs_add_data(struct walk *w, sqfs_inode *inode, uint32_t number)
{
    int r = squashfs_read_blocks(w, inode);
    if (r == 0)
        r = squashfs_find_tail(w, inode);
    if (r < 0)
        return r;
    r = builder_set_pieces(w->builder, number, w->pieces.at, w->pieces.count);
    return r < 0 ? fault_set(w->fault, r, w->path, FAULT_NO_OFFSET, "its blocks are impossible")
                 : 0;
}

/* Extended attributes. */

/*
 * A name with its namespace. The library's own prefixes have "trusted." and
 * "security." the wrong way round.
 */
static int squashfs_read_xattr_name(sqfs_xattr *x, char name[INDEX_NAME_MAX + 1],
                                    size_t *ret_len)
{
    static const char *const prefixes[] = {
        [SQUASHFS_XATTR_USER] = "user.",
        [SQUASHFS_XATTR_TRUSTED] = "trusted.",
        [SQUASHFS_XATTR_SECURITY] = "security.",
    };
    if (x->type >= sizeof(prefixes) / sizeof(*prefixes))
        return -EUCLEAN;
    size_t prefix_len = strlen(prefixes[x->type]), len = prefix_len + x->entry.size;
    if (x->entry.size == 0 || len > INDEX_NAME_MAX ||
        sqfs_xattr_name(x, name + prefix_len, false) ||
        memchr(name + prefix_len, '\0', x->entry.size))
        return -EUCLEAN;
    memcpy(name, prefixes[x->type], prefix_len);
    *ret_len = len;
    return 0;
}

static int squashfs_add_xattr(struct walk *w, sqfs_xattr *x, uint32_t number)
{
    char name[INDEX_NAME_MAX + 1];
    size_t name_len, value_len;
    if (sqfs_xattr_read(x) || squashfs_read_xattr_name(x, name, &name_len) < 0 ||
        sqfs_xattr_value_size(x, &value_len) || value_len > sizeof(w->value) ||
        sqfs_xattr_value(x, w->value))
        return -EUCLEAN;
    return builder_add_xattr(w->builder, number, name, name_len, w->value, value_len);
}

static int squashfs_add_xattrs(struct walk *w, sqfs_inode *inode, uint32_t number)
{
    if (inode->xattr == SQUASHFS_INVALID_XATTR || w->fs.xattr_info.xattr_ids == 0)
        return 0;
    sqfs_xattr x;
    int r = 0;
    if (inode->xattr >= w->fs.xattr_info.xattr_ids || sqfs_xattr_open(&w->fs, inode, &x) ||
        x.remain > XATTRS_MAX || (x.remain > 0 && !squashfs_cursor_valid(w, &x.c_next)))
        r = -EUCLEAN;
    while (r == 0 && x.remain > 0)
        r = squashfs_add_xattr(w, &x, number);
    if (r < 0 && r != -ENOMEM)
        return fault_set(w->fault, r, w->path, FAULT_NO_OFFSET,
                         "its extended attributes are damaged");
    return r;
}

/* Entries. */

static int squashfs_read_symlink(struct walk *w, sqfs_inode *inode, char *target, size_t size,
                                 struct node *member)
{
    if (inode->xtra.symlink_size == 0 || inode->xtra.symlink_size >= size ||
        sqfs_readlink(&w->fs, inode, target, &size) ||
        memchr(target, '\0', inode->xtra.symlink_size))
        return fault_set(w->fault, -EUCLEAN, w->path, member->header_offset,
                         "is a symbolic link whose target is damaged");
    member->link = target;
    member->link_len = inode->xtra.symlink_size;
    return 0;
}

static int squashfs_read_inode(struct walk *w, sqfs_inode_id id, sqfs_inode *inode,
                               struct node *member)
{
    sqfs_md_cursor cursor;
    sqfs_md_cursor_inode(&cursor, id, (sqfs_off_t)w->super.inode_table);
    uint64_t offset = w->super.inode_table + (id >> 16);
    if (offset >= w->super.directory_table || !squashfs_cursor_valid(w, &cursor) ||
        sqfs_inode_get(&w->fs, inode, id) || inode->base.uid >= w->super.id_count ||
        inode->base.guid >= w->super.id_count)
        return fault_set(w->fault, -EUCLEAN, w->path, offset, "its inode is damaged");
    *member = (struct node){
        .mode = (inode->base.mode & 07777u) | sqfs_mode(inode->base.inode_type),
        .uid = w->ids[inode->base.uid],
        .gid = w->ids[inode->base.guid],
        .mtime_sec = inode->base.mtime,
        .header_offset = offset,
        .path = w->path,
        .path_len = w->path_len,
    };
    return 0;
}

/* Fills in the fields that the inode's type determines. */
static int squashfs_read_type(struct walk *w, sqfs_inode *inode, char *target,
                              size_t target_size, struct node *member)
{
    switch (member->mode & S_IFMT) {
    case S_IFREG:
        member->size_bytes = inode->xtra.reg.file_size;
        member->has_pieces = true;
        return 0;
    case S_IFLNK:
        return squashfs_read_symlink(w, inode, target, target_size, member);
    case S_IFCHR:
    case S_IFBLK:
        member->rdev_major = (uint32_t)inode->xtra.dev.major;
        member->rdev_minor = (uint32_t)inode->xtra.dev.minor;
        return 0;
    default:
        return 0;
    }
}

/* Adds the entry at w->path. `member` NULL: another name of *inode. */
static int squashfs_add_named(struct walk *w, const struct node *member, uint32_t *inode)
{
    if (w->levels.count == 0) /* the root */
        return builder_add(w->builder, "", 0, member, w->fault, inode);
    const struct level *level = &w->levels.at[w->levels.count - 1];
    size_t start = level->path_len + (level->path_len > 0);
    int r = builder_add_in(w->builder, level->inode, w->path + start, w->path_len - start,
                           member, w->fault, inode);
    return r == 1 || r == -EEXIST ? fault_set(w->fault, -EUCLEAN, w->path, level->inode_offset,
                                              "occurs twice in its directory")
                                  : r;
}

/* Adds the inode at w->path. */
static int squashfs_add_inode(struct walk *w, sqfs_inode *inode, struct node *member,
                              uint32_t *ret_number)
{
    char target[INDEX_SYMLINK_MAX + 1];
    int r = squashfs_read_type(w, inode, target, sizeof(target), member);
    if (r == 0)
        r = squashfs_add_named(w, member, ret_number);
    if (r == 0 && S_ISREG(member->mode))
        r = squashfs_add_data(w, inode, *ret_number);
    if (r == 0)
        r = squashfs_add_xattrs(w, inode, *ret_number);
    return r;
}

static int squashfs_enter_directory(struct walk *w, sqfs_inode_id id, sqfs_inode *inode,
                                    uint64_t inode_offset, uint32_t number)
{
    int r = map_put(&w->directories, map_key_of(id), 0);
    if (r == -EEXIST)
        return fault_set(w->fault, -EUCLEAN, w->path, inode_offset,
                         "is a directory that occurs twice");
    if (r < 0 || vector_reserve(&w->levels, 1) < 0)
        return -ENOMEM;
    struct level *level = &w->levels.at[w->levels.count];
    level->path_len = w->path_len;
    level->inode_offset = inode_offset;
    level->inode = number;
    /* The size is three more than the entries': 3 means empty. */
    if (inode->xtra.dir.dir_size <= 3)
        inode->xtra.dir.dir_size = 3;
    if (sqfs_dir_open(&w->fs, inode, &level->dir, 0) ||
        (inode->xtra.dir.dir_size > 3 && !squashfs_cursor_valid(w, &level->dir.cur)))
        return fault_set(w->fault, -EUCLEAN, w->path, inode_offset,
                         "is a directory whose list is damaged");
    w->levels.count++;
    return 0;
}

static int squashfs_push_name(struct walk *w, const char *name, size_t len)
{
    if (w->path_len + len + 1 > INDEX_PATH_MAX) {
        struct fault why = {0};
        fault_set(&why, -ENAMETOOLONG, w->path, FAULT_NO_OFFSET,
                  "has a member whose path has more than %u bytes, which no program can name",
                  INDEX_PATH_MAX);
        int r = builder_leave_out(w->builder, &why);
        return r < 0 ? r : -ENAMETOOLONG;
    }
    if (w->path_len > 0)
        w->path[w->path_len++] = '/';
    memcpy(w->path + w->path_len, name, len);
    w->path_len += len;
    w->path[w->path_len] = '\0';
    return 0;
}

/*
 * The next entry of a directory; its name is not terminated. The library steps over the name.
 * It is read from the place before it, once its length is known to be sane. *ret_len is 0 at
 * the end.
 */
static int squashfs_next_entry(struct walk *w, struct level *level, sqfs_dir_entry *entry,
                               char name[INDEX_NAME_MAX], size_t *ret_len)
{
    sqfs_err err = SQFS_OK;
    sqfs_md_cursor cursor = level->dir.cur;
    sqfs_off_t before = level->dir.offset;
    sqfs_dentry_init(entry, NULL);
    bool found = sqfs_dir_next(&w->fs, &level->dir, entry, &err);
    if (!found && err == SQFS_OK) {
        *ret_len = 0;
        return 0;
    }
    size_t len = found ? sqfs_dentry_name_size(entry) : 0;
    if (!found || len == 0 || len > INDEX_NAME_MAX || level->dir.offset > level->dir.total ||
        w->entries_left-- == 0 ||
        sqfs_md_read(&w->fs, &cursor, NULL, (size_t)(level->dir.offset - before) - len) ||
        sqfs_md_read(&w->fs, &cursor, name, len) || !path_is_name(name, len))
        return fault_set(w->fault, -EUCLEAN, w->path, level->inode_offset,
                         "is a directory whose list is damaged");
    *ret_len = len;
    return 0;
}

/* Adds the entry at w->path: another name of an inode, or a new inode. */
static int squashfs_add_entry(struct walk *w, sqfs_inode_id id, int type)
{
    uint64_t known;
    uint32_t number;
    bool is_directory = type == SQUASHFS_DIR_TYPE;
    w->progress->members++;
    if (!is_directory && map_get(&w->links, map_key_of(id), &known) == 0) {
        number = (uint32_t)known;
        return squashfs_add_named(w, NULL, &number);
    }
    sqfs_inode inode;
    struct node member;
    int r = squashfs_read_inode(w, id, &inode, &member);
    if (r < 0)
        return r;
    if (S_ISDIR(member.mode) != is_directory)
        return fault_set(w->fault, -EUCLEAN, w->path, member.header_offset,
                         "is of one type in its directory and of another in its inode");
    r = squashfs_add_inode(w, &inode, &member, &number);
    if (r == 0 && is_directory)
        r = squashfs_enter_directory(w, id, &inode, member.header_offset, number);
    else if (r == 0 && inode.nlink > 1 && map_put(&w->links, map_key_of(id), number) < 0)
        r = -ENOMEM;
    return r;
}

static int squashfs_walk(struct walk *w)
{
    int r = squashfs_push_name(w, "", 0);
    if (r == 0)
        r = squashfs_add_entry(w, sqfs_inode_root(&w->fs), SQUASHFS_DIR_TYPE);
    while (r == 0 && w->levels.count > 0) {
        struct level *level = &w->levels.at[w->levels.count - 1];
        sqfs_dir_entry entry;
        char name[INDEX_NAME_MAX];
        size_t len = 0;
        w->path_len = level->path_len;
        w->path[w->path_len] = '\0';
        r = squashfs_next_entry(w, level, &entry, name, &len);
        if (r == 0 && len == 0) {
            w->levels.count--;
            continue;
        }
        if (r == 0)
            r = squashfs_push_name(w, name, len);
        if (r == 0)
            r = squashfs_add_entry(w, sqfs_dentry_inode(&entry), sqfs_dentry_type(&entry));
        else if (r == -ENAMETOOLONG) /* the entry is left out */
            r = 0;
    }
    return r;
}

static void squashfs_free(struct walk *w)
{
    if (w->is_open) {
        sqfs_table_destroy(&w->fs.xattr_table); /* the library forgets this one */
        sqfs_destroy(&w->fs);
    }
    map_free(&w->links);
    map_free(&w->directories);
    free(w->ids);
    free(w->fragments);
    vector_free(&w->levels);
    vector_free(&w->pieces);
    free(w);
}

static int squashfs_index(struct source *source, struct builder *builder,
                          struct builder_header *header, struct progress *progress,
                          struct fault *fault)
{
    struct walk *w = calloc(1, sizeof(*w));
    if (!w)
        return -ENOMEM;
    w->source = source;
    w->builder = builder;
    w->progress = progress;
    w->fault = fault;
    int r = squashfs_read_super(w);
    if (r == 0)
        r = squashfs_open_image(w);
    if (r == 0)
        r = squashfs_walk(w);
    if (r == 0) {
        header->block_bytes = w->super.block_bytes;
        /*
         * Codec values are SquashFS's own. An image without compressed blocks needs no codec.
         */
        header->codec = w->has_packed ? (enum codec)w->super.compression : CODEC_NONE;
    }
    squashfs_free(w);
    return r;
}

static const char *const endings[] = {".sqfs", ".squashfs", ".sqsh", ".img", NULL};

const struct backend backend_squashfs = {
    .name = "SquashFS",
    .file = "a SquashFS image",
    .endings = endings,
    .number = 2,
    .least_memory_bytes = UINT64_C(4)
                          << 30, /* metadata is compressed: many inodes in few bytes */
    .probe = squashfs_probe,
    .is_whole = squashfs_is_whole,
    .find_behind = squashfs_find_behind,
    .index = squashfs_index,
};
