/*
 * Files that are not archives for us, but that people take for one: an image of another
 * version or of another file system, a container. Naming the format and a way on helps more
 * than "unknown".
 */
#ifndef ONEPOT_UNKNOWN_FORMAT_H
#define ONEPOT_UNKNOWN_FORMAT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "fault.h"

/*
 * Describe in `fault` a file with these first bytes. False: they do not reveal its format.
 * Calls no library.
 */
bool unknown_format_describe(const uint8_t *head, size_t head_len, struct fault *fault);

/*
 * A format that `onepot pack` makes an archive of (pour.h), and nothing else reads: "7z",
 * "rar", "iso9660", "cpio", "ar", "cab", "warc", "xar", "lha"; or NULL.
 */
const char *unknown_format_container(const uint8_t *head, size_t head_len);

#define UNKNOWN_TAR_BYTES 512u /* of a tar's header */

/* Is this a tar's header? Zeros are none. */
bool unknown_format_is_tar_header(const uint8_t bytes[UNKNOWN_TAR_BYTES]);

/* Are these the first bytes of a tar whose first header is damaged? */
bool unknown_format_is_tar(const uint8_t *head, size_t head_len);

/* Say which formats are known. */
void unknown_format_advise(struct fault *fault);

#endif
