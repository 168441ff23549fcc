/*
 * Labels that are parts of samples: text files beside the others, such as x.cls of WebDataset's
 * x.jpg, or an integer feature of a TFRecord. The part is found by its name when a label is
 * wanted, so that opening an archive reads none, and that a filter may leave it out of the
 * sample.
 *
 * Threads: any.
 */
#ifndef ONEPOT_LABEL_H
#define ONEPOT_LABEL_H

#include <stddef.h>
#include <stdint.h>

#include "dataset.h"

#define LABEL_TEXT_MAX 64u /* a longer part is no integer */

/* The name of a part as the archive shows it, where a feature's slash is a dot. -ENOMEM. */
int label_part_name(const char *given, char **ret_name);

/*
 * The part with the label of a sample whose first record is `first`. -ENOENT: it has none;
 * -EDOM: it is too long; -EUCLEAN.
 */
int label_find(const struct dataset *dataset, const struct record *first,
               struct record *ret_part);

/* An integer in decimal, with nothing but blanks around it. -EDOM. */
int label_parse(const void *text, size_t len, int64_t *ret_label);

/* Read a sample's label; -1: it has none. Errors as in label_find and reads. */
int label_read(struct dataset *dataset, const struct record *first, struct onepot_error *error,
               int64_t *ret_label);

/* As dataset_error, about the part with the label of a sample. */
int label_error(struct onepot_error *error, int err, const struct dataset *dataset,
                const struct record *first);

/* -ENOENT: there are samples, and none of them has the part. */
int label_check(const struct dataset *dataset, struct onepot_error *error);

#endif
